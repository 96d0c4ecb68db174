"""Tries examples: without a participant first, where most are refused, then in four worlds that differ in records alone."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from analyst.examples import REALS, Example, Floats, examples
from analyst.worlds import SITES, WIDTH, Seen, World
from support.federation import TestBed
from support.hostile import encoded
from veilsum_node.errors import HostileInput, Refusal, VeilsumError
from veilsum_participant.protocol.policy import study_faults
from veilsum_privacy.computation.contribution import Evaluations, SitePart, SitePlace, contribute
from veilsum_privacy.computation.rehearsal import made_up_statistics, rehearse
from veilsum_privacy.mechanism.noise import CENTRE_BITS
from veilsum_privacy.securesum.context import decode_broadcast
from veilsum_privacy.study.study import Study, parse_study
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.base import Records, TrainingTask

THROUGH = 40
"""Of so many examples one is taken through real participants as well."""


@dataclass
class Report:
    """What was tried.

    Attributes:
        tried: examples.
        refused: by what refuses them without a record: the site's policy, a rehearsal, or a round's check of its broadcast.
        computed: contributions compared in the four worlds.
        carried: examples that went through real participants.
        findings: what differed, by the example's seed.
    """

    tried: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    computed: int = 0
    carried: int = 0
    findings: dict[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        refused = ", ".join(f"{count} {name}" for name, count in sorted(self.refused.items()))
        return (
            f"{self.tried} examples: {sum(self.refused.values())} refused without a record ({refused or 'none'}),"
            f" {self.computed} compared on {{}}, {{r}}, D and D + r, {self.carried} of them all through real participants;"
            f" {len(self.findings)} findings"
        )


class Judge:
    """Compares what four worlds show.

    Args:
        directory: for the worlds' files.
    """

    def __init__(self, directory: Path) -> None:
        first = World(directory / "0")
        self._worlds = [first, *(World(directory / str(index), first.bed) for index in range(1, 4))]
        self.report = Report()

    @property
    def bed(self) -> TestBed:
        """The first world's parties."""
        return self._worlds[0].bed

    def run(self, number: int, seed: int, seconds: float = float("inf")) -> Report:
        """Try so many examples from a seed on, or as many as there is time for."""
        end = time.monotonic() + seconds
        for example in examples(self._worlds[0].bed, seed):
            if self.report.tried >= number or time.monotonic() >= end:
                return self.report
            self.report.tried += 1
            try:
                self._judge(example)
            except AssertionError as error:
                self.report.findings[example.seed] = str(error)
        return self.report

    def _judge(self, example: Example) -> None:
        rng = np.random.default_rng(example.seed)
        study = parse_study(example.data)
        refused = self._refused(study, example)
        if refused:
            self.report.refused[refused] += 1
        else:
            self._compute(study, example, rng)
        if rng.integers(THROUGH) == 0:
            seen = self.carry(study, example, rng)
            assert len({item.faults for item in seen}) == 1, f"a fault depends on records: {seen}"

    def _refused(self, study: Study, example: Example) -> str:
        """What a participant refuses the example for, asked as it asks itself; empty for nothing."""
        bed = self._worlds[0].bed
        refusal = Refusal.of(study_faults(AgreedStudy(study), "analyst", bed.sites["a"].config, "a", 1e-5))
        if refusal is not None:
            return f"as {refusal.code.value}"
        try:
            for task in study.tasks:
                rehearse(AgreedStudy(study).task(task.label))
            try:
                rehearse(AgreedStudy(study).task(example.label), _received(study, example))
            except HostileInput:
                return "for the broadcast"
        except VeilsumError:
            return "in rehearsal"
        return ""

    def _compute(self, study: Study, example: Example, rng: np.random.Generator) -> None:
        """The contribution itself: one size, no fault that a record has a part in, and no step longer than the sensitivity."""
        declaration = study.task(example.label)
        plan = AgreedStudy(study).task(example.label).plan(study.sites, study.sites)
        arrays = _received(study, example)
        place = SitePlace(0, made_up_statistics(AgreedStudy(study).task(example.label)), evaluations=Evaluations())
        parts = [contribute(plan, lambda given=given: given, arrays, place) for given in _records(study, rng)]  # type: ignore[misc]
        self.report.computed += 1
        assert {part.total.shape for part in parts} == {(plan.encoding.size,)}, "a contribution's length depends on records"
        faults = [repr(part.fault) for part in parts]
        assert len({fault == "None" for fault in faults}) == 1, f"a fault depends on records: {faults}"
        if declaration.sampling_rate == 1.0 and not isinstance(AgreedTask(AgreedStudy(study), declaration).task, TrainingTask):
            free = declaration.source is not None and declaration.variance == 0 and study.privacy.noise != "none"
            for first, second in ((0, 1), (2, 3)):
                unit = 2**CENTRE_BITS if declaration.unrounded else 1
                _check_step(parts[first], parts[second], 0 if free else unit * declaration.grid)

    def carry(self, study: Study, example: Example, rng: np.random.Generator) -> list[Seen]:
        """Take an example through real participants over {}, {r}, D and D + r, of 0, 1, 5 and 6 records: what leaves them is
        alike."""
        d, labels = rng.uniform(-1, 1, (5, WIDTH)), rng.integers(0, 2, 5)
        r = rng.choice([*REALS[-12:-2], -1.0, 0.0, 0.5, np.nan], (1, WIDTH))
        own = rng.integers(-1, 3, 1)
        sets = [(d[:0], labels[:0]), (r, own), (d, labels), (np.vstack([d, r]), np.concatenate([labels, own]))]
        seen = []
        for world, records in zip(self._worlds, sets, strict=True):
            world.put(*records)
            seen.append(world.try_out(example))
        self.report.carried += 1
        assert len({item.messages for item in seen}) == 1, f"what leaves a site depends on records: {seen}"
        assert len({item.entries for item in seen}) == 1, f"a site's ledger depends on records: {seen}"
        for sizes in zip(*(item.sizes for item in seen), strict=True):
            assert max(sizes) - min(sizes) < 200, f"a ciphertext's size depends on records: {seen}"
        return seen


def run_part(given: tuple[int, int]) -> Report:
    """Try so many examples from a seed on, in worlds of their own; for one process of several."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="analyst-") as directory:
        return Judge(Path(directory)).run(*given)


def _check_step(first: SitePart, second: SitePart, sensitivity: int) -> None:
    step = (second.total - first.total).astype(object)
    length = int((step * step).sum())
    assert length <= sensitivity**2, f"one unit changes the sum by {length**0.5:.3f}, more than {sensitivity}"


def _received(study: Study, example: Example) -> dict[str, Floats]:
    """What a participant reads of the example's broadcast."""
    return decode_broadcast(
        encoded(study, example.label, example.broadcast(study)), AgreedStudy(study).task(example.label).single
    )


def _records(study: Study, rng: np.random.Generator) -> list[Records]:
    """{}, {r}, D and D + r under the study's schema, as a reader gives them; r is the last subject."""
    encoder = study.encoder
    width = study.data.width if encoder is None or encoder.kind == "projection" else encoder.width
    n = 7
    features = np.where(rng.random((n, width)) < 0.3, rng.choice([-1.0, 0.0, 1.0], (n, width)), rng.uniform(-1, 1, (n, width)))
    present = rng.random((n, width)) < rng.choice([0.5, 1.0])
    labels = rng.integers(-1, max(len(study.data.classes), 1), n) if study.data.label is not None else None
    subjects = np.array([0, 0, 1, 2, 3, 3, 4])
    last = n - 1

    def take(rows: slice) -> Records:
        kept: Floats = np.where(present[rows], features[rows], 0.0)
        return Records(kept, present[rows], None if labels is None else labels[rows], subjects[rows])

    return [take(slice(0, 0)), take(slice(last, n)), take(slice(0, last)), take(slice(0, n))]


__all__ = ["SITES", "Judge", "Report"]
