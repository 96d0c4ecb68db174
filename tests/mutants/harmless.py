"""Mutants that survive and do no harm, each with the reason. A name holds the changed code: where that changes, look again."""

from __future__ import annotations

HARMLESS: dict[str, str] = {}
