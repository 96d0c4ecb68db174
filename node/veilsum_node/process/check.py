"""What a check found; and the check of disk, state and backup, which both parties have."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from veilsum_node.storage import FULL, NEARLY_FULL, OLD_BACKUP, Storage


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

    def row(self) -> dict[str, str]:
        """What tables and pages show of it."""
        return {"state": self.status.value, "of": self.check, "found": self.detail, "what to do": self.advice}


def storage_checks(found: Storage, now: int, party: str, *, backups: bool = True) -> Iterator[Check]:
    """What is wrong with a party's disk and backups.

    Args:
        found: by :func:`veilsum_node.storage.look_at`.
        now: Unix seconds.
        party: participant or coordinator, as in its commands.
        backups: whether this program makes them; a database server has its own.
    """
    detail = f"{_mebibytes(found.free)} free of {_mebibytes(found.disk)}; the state has {_mebibytes(found.state)}"
    if found.free < FULL:
        advice = "Make room, or the folder writable: what cannot be written is not released, and open rounds are lost."
        yield Check("disk", CheckOutcome.FAILED, f"{'full' if found.free else 'full, or not writable here'}: {detail}", advice)
    elif found.free < max(NEARLY_FULL, found.state):
        yield Check(
            "disk", CheckOutcome.WARNING, f"nearly full: {detail}", "Make room: a backup needs the state's size again."
        )
    else:
        yield Check("disk", CheckOutcome.OK, detail)
    if not backups:
        return
    advice = f"`veilsum {party} backup FILE` makes one while the {party} runs; let a timer do it, and keep it elsewhere."
    if found.backed_up is None:
        yield Check("backup", CheckOutcome.WARNING, "none is known: this program has made none of this state", advice)
        return
    days = (now - found.backed_up) / 86400
    old = now - found.backed_up > OLD_BACKUP
    yield Check(
        "backup", CheckOutcome.WARNING if old else CheckOutcome.OK, f"the last is {days:.1f} days old", advice if old else ""
    )


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
