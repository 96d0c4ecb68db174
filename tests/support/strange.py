"""Messages that a process within a site may say, and that say nothing that there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from veilsum_participant.boundary.encoding import Message, rules


def strange(of: type[Message]) -> Iterator[Message]:
    """Messages of a class that are within its bounds and say nothing that there is, a field at a time and all at once."""
    values: dict[str, list[Any]] = {}
    for name, rule in rules(of).items():
        match rule.kind:
            case "number":
                found: list[Any] = [rule.most]
            case "real":
                found = [1e308, -1.0]
            case "octets":
                found = [b"\xff" * max(16, rule.least), b"[]" * 8, b"null"]
            case "text":
                found = ["\x00\u202e", "x" * min(rule.most, 300)]
            case "message" if rule.of is not None:
                found = [rule.of(), *strange(rule.of)]
            case _:
                found = [None]
        values[name] = [*([()] if rule.many else []), *([(each,) for each in found] if rule.many else found)]
    yield of()
    for name, kinds in values.items():
        for value in kinds:
            yield of(**{name: value})
    yield of(**{name: kinds[-1] for name, kinds in values.items()})
