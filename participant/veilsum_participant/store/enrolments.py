"""Enrolments as the store keeps them: a study's own, and those of its roster."""

from __future__ import annotations

import json

from veilsum_privacy.securesum.roster import Enrolment


def dump_enrolments(enrolments: list[Enrolment]) -> bytes:
    """Serialise enrolments for the store."""
    return json.dumps([[part.hex() for part in (item.certificate, item.body, item.signature)] for item in enrolments]).encode()


def load_enrolments(data: bytes) -> list[Enrolment]:
    """Load enrolments from the store."""
    return [Enrolment(*(bytes.fromhex(part) for part in parts)) for parts in json.loads(data)]
