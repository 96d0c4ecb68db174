"""What a check found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class CheckOutcome(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Check:
    """One check: what was found, and for a warning or failure what to do."""

    check: str
    status: CheckOutcome
    detail: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)
