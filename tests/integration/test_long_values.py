"""Sums and releases that lie in pieces: a method that works on parts of them gets what it gets from whole ones, and nothing of
a sum that does not open is stored.

What is long is made short here, so that a small model has many pieces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from support.durable import Died, make_trial, same
from support.durable_studies import STUDIES
from support.federation import make_bed, make_data, make_request, schema_of
from support.postgres import server
from veilsum.local.federation import results_directory
from veilsum_coordinator.protocol.rounds import FixedSum
from veilsum_coordinator.service import runner
from veilsum_coordinator.service.runner import RoundLostError
from veilsum_coordinator.storage import journal, long_values, outage, releases
from veilsum_coordinator.storage.long_values import RELEASE_PIECES, SUM_PIECES, cut
from veilsum_coordinator.storage.records import RELEASES
from veilsum_node.errors import HostileInput
from veilsum_privacy.results.release_names import release_digest
from veilsum_privacy.results.result import load_result
from veilsum_privacy.securesum import packed
from veilsum_privacy.training import long_arrays


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "HOLD_SECONDS", 120.0)


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 3 integers and of 8 words of a sum in the journal, of 4 values in a method, whose state lies in files."""
    monkeypatch.setattr(journal, "LONG", 1000)
    monkeypatch.setattr(packed, "_BLOCK", 8)
    for module in (releases, long_arrays):
        monkeypatch.setattr(module, "LONG", 1)
    for module in (releases, long_values):
        monkeypatch.setattr(module, "PIECE_VALUES", 3)
    for module in (long_arrays, runner):
        monkeypatch.setattr(module, "PIECE", 4)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 6, 8, 12])
def test_integers_are_cut(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    shorten(monkeypatch)
    found = [piece.tolist() for piece in cut(np.arange(size) - 5)]
    assert [len(piece) for piece in found[:-1]] == [3] * (len(found) - 1)
    assert [value for piece in found for value in piece] == list(range(-5, size - 5))


@pytest.mark.system
@pytest.mark.parametrize(("method", "place"), [("fedavg", "file"), pytest.param("fedsgd", "server", marks=pytest.mark.system)])
def test_a_coordinator_that_dies_ends_with_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, place: str
) -> None:
    """It holds what it kept of sums and releases in pieces, and its method works on parts of them."""
    whole = make_trial(tmp_path / "whole", STUDIES[method])
    expected = whole.finish(whole.submit())
    shorten(monkeypatch)
    url = server().new_database() if place == "server" else ""
    trial = make_trial(tmp_path / "pieces", STUDIES[method], url)
    key, status = trial.submit(), None
    while status is None:
        try:
            status = trial.live(trial.open(4, after=True), key)
        except Died:
            assert trial.lives < 200
    same(dict(load_result(results_directory(trial.results, key)).arrays), expected)
    trial.audit(key)


def test_any_part_can_be_read_and_the_sum_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)
    bed = make_bed(tmp_path, make_data())
    key = bed.local.submit(bed.compile(make_request(schema_of(2))), bed.analyst)
    release = bed.local.prepare(key).sum("statistics")
    (row,) = bed.hub.journal.releases(key)
    values = np.frombuffer(row["values"], dtype="<i8")
    assert release.digest == row["digest"] == release_digest(key, row["round"], row["attempt"], row["values"])
    for start in range(len(values)):
        for stop in range(start + 1, len(values) + 1):
            np.testing.assert_array_equal(bed.hub.journal.release_values(key, 1, start, stop), values[start:stop])
    for name, block in release.values.items():
        np.testing.assert_array_equal(release.part(name, slice(0, block.size)), block.reshape(-1))
    (assignment,) = [item.assignment for item in bed.hub.studies[key].machine.rounds]
    words = bed.hub.studies[key].machine.agreed.task("statistics").plan(4, len(assignment.cohort)).encoding.words
    assert stored(bed) == (1, -(-len(values) // 3), 1 + -(-words // 8))


def test_a_sum_that_does_not_open_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And costs no more than it has cost already."""
    shorten(monkeypatch)
    bed = make_bed(tmp_path, make_data())

    def wrong(*_: Any, **__: Any) -> Any:
        raise HostileInput("A value is out of bounds.")

    monkeypatch.setattr(FixedSum, "open", wrong)
    key = bed.local.submit(bed.compile(make_request(schema_of(2))), bed.analyst)
    with pytest.raises(RoundLostError, match="out of bounds"):
        bed.local.prepare(key).sum("statistics")
    assert stored(bed)[:2] == (0, 0)
    bed.hub.tick()
    assert stored(bed) == (0, 0, 0), "nor anything of the sum, once the study's end is stored"


def stored(bed: Any) -> tuple[int, ...]:
    """How many releases, pieces of them and pieces of sums the journal holds."""
    with bed.hub.journal.database.reading() as connection:
        tables = (RELEASES, RELEASE_PIECES, SUM_PIECES)
        return tuple(connection.scalar(select(func.count()).select_from(table)) for table in tables)
