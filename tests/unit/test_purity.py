"""Opaque maps: which there are, and that one which joins records is refused before there is a record."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from support.neighbours import network_settings
from veilsum_node.errors import HostileInput
from veilsum_privacy.computation.purity import impurity
from veilsum_privacy.computation.rehearsal import rehearse
from veilsum_privacy.mechanism.rows.evaluation import _Maps
from veilsum_privacy.mechanism.rows.primitives import OPAQUE_MAPS
from veilsum_privacy.mechanism.rows.symbols import opaque, record_of
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import RowTask
from veilsum_privacy.tasks.feature_maps import ENCODER
from veilsum_privacy.tasks.local_training import ROWS
from veilsum_privacy.training.layer_inputs import INPUTS
from veilsum_privacy.training.traced import NETWORK

ROOT = Path(__file__).parents[2]
Map = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def callers(name: str) -> set[str]:
    """Modules below ``privacy`` which call something by this name."""
    found = set()
    for path in (ROOT / "privacy").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and name in (getattr(node.func, "id", None), getattr(node.func, "attr", None)):
                found.add(path.stem)
    return found


def test_there_are_no_more_opaque_maps_than_are_listed() -> None:
    """A new one is believed, not enforced: it needs a decision, and a line in docs/guard.md."""
    assert {ENCODER, INPUTS, NETWORK, ROWS} == OPAQUE_MAPS
    assert callers("opaque") == {"feature_maps", "traced", "gradients", "layer_inputs", "local_training"}, (
        "what says an opaque map"
    )
    own = {kind.__name__ for kind in TASKS.values() if issubclass(kind, RowTask) and kind.maps is not RowTask.maps}
    assert own == {"CalibrationStep", "ModelTables", "Gradient", "Grams"}


def test_a_graph_takes_no_map_of_another_name() -> None:
    with pytest.raises((ValueError, HostileInput), match="name that is known"):
        opaque("elsewhere", record_of(3, labelled=False).features, 2)


def pure(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.column_stack([np.sin(rows[:, 0]), rows[:, 1] * rows[:, 0]])


def shuffled(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return pure(rows) + 1e-9 * rows[:, :1].mean()


def padded(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return pure(rows) + (0.0 if len(rows) > 1 else 2.0**-40)


def placed(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return pure(rows) + 1e-12 * np.arange(len(rows))[:, None]


def neighbouring(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return pure(np.maximum(rows, np.roll(rows, 1, axis=0)))


def keeping() -> Map:
    seen: list[float] = []

    def compute(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        found = pure(rows) + 1e-9 * len(seen)
        seen.append(1.0)
        return found

    return compute


@pytest.mark.parametrize("width", [2, 7])
def test_a_map_that_joins_records_is_found(width: int) -> None:
    assert impurity(pure, width) is None
    for joining in (shuffled, padded, placed, neighbouring, keeping(), lambda rows: pure(rows)[:1]):
        assert impurity(joining, width) is not None


def test_a_task_whose_map_joins_records_is_refused_at_enrolment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each map is tried in the batches in which it is evaluated, and the graph around it."""
    asked: list[str] = []
    real = _Maps._made

    def joining(self: _Maps, name: str, given: NDArray[np.float64], size: int) -> NDArray[np.float64]:
        asked.append(name)
        return real(self, name, given, size) + 1e-9 * given[:, :1].mean()

    for setting in network_settings():
        agreed = AgreedStudy(setting.study("record", grid=2**16, variance=10**9)).tasks[0]
        rehearse(agreed)
        with monkeypatch.context() as planted:
            planted.setattr(_Maps, "_made", joining)
            asked.clear()
            with pytest.raises(HostileInput, match="gives a record other values"):
                rehearse(agreed)
        assert asked
