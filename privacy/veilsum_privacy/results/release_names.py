"""What a release is called: the digest of its values, and the file that proves it."""

from __future__ import annotations

import hashlib

from veilsum_node.canonical import begin_digest

FOLDER = "proof"


def round_file(number: int) -> str:
    """The file of what was signed for a round's release, below the result's directory."""
    return f"{FOLDER}/round-{number:06d}.json"


def release_digest(study: bytes, number: int, attempt: int, values: bytes | memoryview) -> bytes:
    """Digest of a release (32 bytes); ``values`` are the opened sum's integers, little-endian int64."""
    state = begin_release_digest(study, number, attempt, len(values))
    state.update(values)
    return state.digest()


def begin_release_digest(study: bytes, number: int, attempt: int, size: int) -> hashlib._Hash:
    """The state of :func:`release_digest` before the values' ``size`` bytes, which are then added piece by piece."""
    return begin_digest("veilsum/1/release", study, number.to_bytes(8, "big"), attempt.to_bytes(8, "big"), last=size)
