"""Planted secrets are looked for, in every spelling that somebody might write."""

from __future__ import annotations

import base64
from collections.abc import Iterator

SHORTEST = 12
"""Bytes of a secret by which it is known again."""


def spellings(secret: bytes) -> Iterator[bytes]:
    """How a secret may be written: hexadecimal, base64, Python's representation, as it is."""
    part = secret[: max(SHORTEST, len(secret) // 2)]
    yield part
    yield part.hex().encode()
    yield base64.b64encode(secret)[: 4 * (len(part) // 3)]
    yield repr(part)[2:-1].encode()


def look_for(secrets: dict[str, bytes], text: bytes, where: str) -> None:
    """Fail if one of them is in the text."""
    lowered = text.lower()
    for name, secret in secrets.items():
        for spelling in spellings(secret):
            assert spelling.lower() not in lowered, f"{name} in {where}"
