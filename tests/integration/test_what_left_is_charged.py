"""Whatever a coordinator asks in whatever order, and whatever becomes of a site meanwhile, all that left it is in its ledger.

Its process ends at any time, its clock is set by hours, days and years either way, across the end of a leap year's February;
its file is put back from any earlier copy, and then it reads its own receipts before anything else.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.hostile_histories import Playing, play
from veilsum_participant.protocol import recovery
from veilsum_participant.protocol.openings import Openings
from veilsum_privacy.ledger import Ledger


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.system) for seed in range(3, 30))])
def test_all_that_left_is_charged(tmp_path: Path, seed: int) -> None:
    play(Playing(tmp_path, seed))


def test_much_leaves_in_these_histories(tmp_path: Path) -> None:
    """They would show little if nearly everything was refused."""
    assert len(play(Playing(tmp_path, 0)).left) >= 4


@pytest.mark.parametrize("fault", ["no charge", "the mirror is not settled", "cheaper than it is"])
def test_a_planted_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    if fault == "no charge":
        monkeypatch.setattr(Openings, "_charge", lambda *_: None)
    elif fault == "the mirror is not settled":
        monkeypatch.setattr(recovery, "settle", lambda *_: [])
    else:
        real = Ledger.spending
        monkeypatch.setattr(Ledger, "spending", lambda *given: replace(found := real(*given), spent=found.spent / 2))

    def several() -> None:
        for seed in range(4):
            play(Playing(tmp_path / str(seed), seed))

    with pytest.raises(AssertionError):
        several()
