"""Receipts show the heads of ledgers to a whole cohort: who tries what may stand between two of them finds nothing.

The adversary has the software, both receipts and their releases, and guesses the rest: whether a computation failed, a site's
budget, what others' studies cost. It hashes as the ledger does, by its own reading of how an entry is hashed.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.federation import DATASET, make_bed, make_data, make_request, schema_of
from support.hostile import Adversary, altered
from veilsum_node.errors import RefusalCode
from veilsum_participant.datasets import Datasets
from veilsum_privacy.computation import contribution
from veilsum_privacy.ledger import Kind, LedgerReader, write_jsonl
from veilsum_privacy.ledger.receipts import parse_receipt
from veilsum_privacy.tasks.base import Records

BUDGET, DELTA = 7.0, 1e-5
CAUSES = ("ValueError", "IndexError", "KeyError", "FloatingPointError", "HostileInput", "Misuse", "OSError", "MemoryError")
"""What a fault might be called."""

COLUMNS = (
    "study", "round", "attempt", "context", "population", "dataset", "event", "delta", "unit", "cohort_size", "colluders",
)  # fmt: skip

DETAIL_OF_MIRRORS = {
    Kind.GENESIS: {"site", "role", "certificate", "authority", "hiding"},
    Kind.RECEIPTS: {"receipts", "cohort"},
    Kind.CONSENT: {"consents"},
    Kind.RELEASE_SEEN: {"digest"},
}


def hashed(head: str, seq: int, time: int, kind: str, columns: Mapping[str, Any], detail: Mapping[str, Any]) -> str:
    """The hash of an entry behind ``head`` by who knows all of it, as far as it can be known."""
    entry = {**dict.fromkeys(COLUMNS), **columns, "seq": seq, "time": time, "kind": kind, "detail": detail, "previous": head}
    return hashlib.sha256(json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


Step = tuple[str, Mapping[str, Any], Mapping[str, Any]]
"""Kind, columns and detail of an entry."""


def follow(head: str, seq: int, time: int, steps: Sequence[Step]) -> str:
    """The head after some entries, of which the first has the number ``seq``."""
    for offset, (kind, columns, detail) in enumerate(steps):
        head = hashed(head, seq + offset, time, kind, columns, detail)
    return head


def release_of(body: bytes) -> dict[str, Any]:
    """The columns of a release's entries by its receipt; the population is called as the dataset, and 1e-5 a usual delta."""
    shown = json.loads(body)
    names = ("study", "round", "attempt", "context", "dataset", "event", "unit", "cohort_size", "colluders")
    return {**{name: shown[name] for name in names}, "population": shown["dataset"], "delta": DELTA.hex()}


def guess(bodies: Sequence[bytes], time: int, candidates: Mapping[Any, Sequence[Step]]) -> tuple[Any, int]:
    """Which of the candidates stands between one attempt's receipt and the next one's, if any; and the number of hashes."""
    first, last = (json.loads(body)["head"] for body in bodies)
    tries = 0
    for seq in range(1, 60):
        for name, steps in candidates.items():
            tries += len(steps)
            if follow(first, seq, time, steps) == last:
                return name, tries
    return None, tries


def failing(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """Let the kernel fail on one record, as a fault that nobody knows of would."""
    real = contribution.rows_sum

    def fails_on(evaluation: Any, records: Records, *rest: Any, **more: Any) -> Any:
        if np.any(records.features == value):
            raise FloatingPointError("somebody is here")
        return real(evaluation, records, *rest, **more)

    monkeypatch.setattr(contribution, "rows_sum", fails_on)


def adversary(directory: Path, *, target: bool = False, budget: float | None = BUDGET) -> Adversary:
    """In front of four sites; the first holds the target's record, or another one in its place."""
    data = make_data()
    features, labels = data["a"]
    features[0, 0] = 0.625 if target else 0.5
    return Adversary(make_bed(directory, {**data, "a": (features, labels)}, budget=(budget, DELTA)))


def attempts(attack: Adversary, numbers: Sequence[int]) -> list[bytes]:
    """The bodies of the first site's receipts of attempts, each of which takes the place of the one before."""
    for number in numbers:
        assert attack.assign("a", attack.assignment(attempt=number)).call == "upload"
    return [attack.payloads["a", number].receipt.body for number in numbers]


@contextmanager
def turned(attack: Adversary) -> Iterator[None]:
    """Another study for a while."""
    known = attack.study, attack.payloads, attack.assignments
    yield
    attack.use(known[0])
    attack.payloads, attack.assignments = known[1:]


# -- whether a record is there ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [False, True])
def test_two_abandoned_attempts_do_not_tell_whether_a_computation_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: bool
) -> None:
    failing(monkeypatch, 0.625)
    attack = adversary(tmp_path, target=target)
    attack.set_up()
    bodies = attempts(attack, (1, 2))
    one, two = map(release_of, bodies)
    honest: list[Step] = [("free", one, {}), ("reserve", two, {})]
    candidates = {cause: [*honest, ("fault", two, {"cause": cause})] for cause in CAUSES}
    found, tries = guess(bodies, attack.bed.clock.now, {"nothing failed": honest, **candidates})
    assert found is None
    assert tries > 1000
    assert attack.bed.sites["a"].ledger.spending(DATASET).spent == 0


def test_a_freed_reservation_leaves_nothing_that_depends_on_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the number and order of entries nor in the words of an export."""
    failing(monkeypatch, 0.625)
    told = []
    for target in (False, True):
        attack = adversary(tmp_path / str(target), target=target)
        attack.set_up()
        attempts(attack, (1, 2))
        attack.cores["a"].membership.leave(attack.key, "ended")
        ledger = attack.bed.sites["a"].ledger
        told.append([(entry.seq, entry.kind, sorted(entry.detail)) for entry in ledger.entries()])
        export = io.StringIO()
        write_jsonl(LedgerReader(ledger.database), export)
        assert "FloatingPoint" not in export.getvalue()
        assert not [entry for entry in ledger.entries() if entry.kind in (Kind.FAULT, Kind.SNAPSHOT)]
    assert told[0] == told[1]


# -- what is left of a budget -----------------------------------------------------------------------------------------------


def test_a_budget_is_not_found_behind_a_refusal(tmp_path: Path) -> None:
    """One refused study, then as many guesses as one likes: ``max_budget_answers`` would bound nothing."""
    attack = adversary(tmp_path)
    attack.set_up()
    attempts(attack, (1,))
    with turned(attack):
        attack.use(altered(attack.study, nonce="f" * 32, task__releases=1000, privacy__epsilon=5000.0))
        assert RefusalCode.BUDGET in attack.enrol("a").codes
    attempts(attack, (2,))
    bodies = [attack.payloads["a", number].receipt.body for number in (1, 2)]
    one, two = map(release_of, bodies)
    (refusal,) = attack.bed.sites["a"].ledger.entries(kind=Kind.REFUSAL)
    assert refusal.study is not None
    columns = {"study": refusal.study.hex(), "dataset": DATASET, "population": DATASET, "delta": DELTA.hex()}

    def refused(budget: float) -> list[Step]:
        """The entry of a site with another budget, which the adversary has from a participant of its own."""
        text = json.dumps(dict(refusal.detail))
        for form in ("{:g}", "{:.6g}"):
            text = text.replace(f"of {form.format(BUDGET)} at", f"of {form.format(budget)} at")
        detail = json.loads(text)
        detail["figures"]["budget"] = budget.hex()
        detail.pop("random", None)
        return [("refusal", columns, detail), ("free", one, {}), ("reserve", two, {})]

    found, tries = guess(bodies, attack.bed.clock.now, {budget: refused(budget) for budget in np.arange(1.0, 10.5, 0.5)})
    assert found is None
    assert tries > 1000


# -- whatever else stands between two receipts ------------------------------------------------------------------------------


def _fault_elsewhere(attack: Adversary) -> None:
    with turned(attack):
        attack.use(altered(attack.study, nonce="e" * 32))
        attack.set_up()
        assert attack.assign("a", attack.assignment()).call == "upload"


def _budget(attack: Adversary) -> None:
    ledger = attack.bed.sites["a"].ledger
    with ledger.database.transaction() as connection:
        ledger.set_budget(connection, DATASET, 9.0, DELTA, reason="ethics 12/24", operator="dr. privacy", adaptive="gaussian")


def _checkpoint(attack: Adversary) -> None:
    attack.bed.sites["a"].ledger.checkpoint()


def _charge_elsewhere(attack: Adversary) -> None:
    with turned(attack):
        attack.use(altered(attack.study, nonce="d" * 32))
        attack.set_up()
        attack.collect()
        attack.finish()


BETWEEN: dict[str, tuple[Callable[[Adversary], None], list[Kind]]] = {
    "a computation of another study": (_fault_elsewhere, [Kind.RESERVE]),
    "a release of another study": (_charge_elsewhere, [Kind.RESERVE, Kind.CHARGE, Kind.RELEASE_SEEN]),
    "a budget": (_budget, [Kind.BUDGET]),
    "what was spent": (_checkpoint, [Kind.CHECKPOINT]),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("target", [False, True])
@pytest.mark.parametrize("what", BETWEEN)
def test_who_guesses_everything_right_does_not_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, target: bool
) -> None:
    """Every value of every entry between two receipts is given to the adversary, but for the entries' random bytes."""
    failing(monkeypatch, 0.625)
    attack = adversary(tmp_path, target=target, budget=None)
    attack.set_up()
    ledger = attack.bed.sites["a"].ledger
    first = attempts(attack, (1,))
    happens, kinds = BETWEEN[what]
    happens(attack)
    second = attempts(attack, (2,))
    head, last = (parse_receipt(body).head for body in (*first, *second))
    position = ledger.position(head)
    assert position is not None
    with ledger.walk() as walk:
        rows = [dict(step.row) for step in walk.steps][position : ledger.position(last)]
    assert [row["kind"] for row in rows] == [*kinds, Kind.FREE, Kind.RESERVE]
    known = head.hex()
    for row in rows:
        delta = None if row["delta"] is None else float(row["delta"]).hex()
        event, detail = (None if row[name] is None else json.loads(row[name]) for name in ("event", "detail"))
        detail.pop("random", None)
        hidden = ("seq", "time", "kind", "detail", "previous", "hash", "signature")
        columns = {name: value for name, value in row.items() if name not in hidden} | {"event": event, "delta": delta}
        guessed = hashed(known, row["seq"], row["time"], row["kind"], columns, detail)
        assert guessed != row["hash"]
        known = row["hash"]  # and even so the next one is not told by it


def test_a_file_that_cannot_be_read_is_not_told_by_a_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = adversary(tmp_path)
    attack.set_up()
    monkeypatch.setattr(Datasets, "read", lambda *_, **__: {}["no such column"])
    bodies = attempts(attack, (1, 2))
    one, two = map(release_of, bodies)
    honest: list[Step] = [("free", one, {}), ("reserve", two, {})]
    candidates = {cause: [*honest, ("fault", two, {"cause": cause})] for cause in CAUSES}
    assert guess(bodies, attack.bed.clock.now, {"nothing failed": honest, **candidates})[0] is None


# -- what others hold -------------------------------------------------------------------------------------------------------


def test_a_mirror_holds_nothing_of_a_sites_ledger_but_receipts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study of the honest parties in which a computation fails, and one that is refused for its price."""
    failing(monkeypatch, 0.625)
    attack = adversary(tmp_path, target=True)
    bed = attack.bed
    attack.use(altered(attack.study, task__releases=1000, privacy__epsilon=5000.0))
    assert RefusalCode.BUDGET in attack.enrol("a").codes
    key = bed.local.submit(bed.compile(make_request(schema_of(2), epsilon=1.0, min_cohort=2)), bed.analyst)
    bed.local.prepare(key).sum("statistics")
    site = bed.sites["a"].ledger
    assert [entry.kind for entry in site.entries()][-3:] == [Kind.REFUSAL, Kind.RESERVE, Kind.CHARGE]
    mirror = LedgerReader(bed.hub.journal.mirror.database)
    entries = mirror.entries()
    assert {entry.kind for entry in entries} == set(DETAIL_OF_MIRRORS)
    assert all(set(entry.detail) <= DETAIL_OF_MIRRORS[entry.kind] for entry in entries)
    own = {entry.random for entry in site.entries()}
    assert own.isdisjoint({entry.random for entry in entries})
    reserved = [entry.hash for entry in site.entries(kind=Kind.RESERVE)]
    assert [kept.parsed.head for kept in mirror.receipts(participant="a")] == reserved
