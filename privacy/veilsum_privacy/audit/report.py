"""What a site's audit of its own releases found, as a file that the site's key signs and a dossier takes in."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.randomness import RandomSource
from veilsum_privacy.audit.audit import CONFIDENCE, LEVEL, TRIALS, Finding, NoCanary, audit
from veilsum_privacy.audit.canaries import as_unit, candidates, made_up_company
from veilsum_privacy.audit.references import ReferenceTask
from veilsum_privacy.audit.routes import ReleaseRoute, StepRoute, SumRoute
from veilsum_privacy.audit.signed import FORMAT
from veilsum_privacy.computation.contribution import SitePlace
from veilsum_privacy.computation.rehearsal import made_up_broadcast, made_up_statistics
from veilsum_privacy.study.encoder import Encoder
from veilsum_privacy.study.study import Disclosure, NoiseKind, Unit
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.feature_maps import Encode
from veilsum_privacy.training.weights import made_up

SEALED = 2
"""Releases of each audit that are encrypted and opened."""

_SEED = 1  # of made-up records, which are not secret


@dataclass(frozen=True)
class Subject:
    """One release to audit.

    Attributes:
        agreed: its task, in the study that declares it.
        index: the site's place among that study's participants.
    """

    agreed: AgreedTask
    index: int = 0


@dataclass(frozen=True)
class AuditRow:
    """What was audited and what was found.

    Attributes:
        label, task: of the study, or of a reference.
        noise: how it is made up. What is measured is the site's own share of it, against all others together.
        encrypted: releases that were masked, encrypted, added up, checked and opened, to the same values.
        finding: None where nothing was measured.
        why: it was not; ``failed``: because of a fault of the site's code.
    """

    label: str
    task: str
    noise: str
    unit: str
    disclosure: str
    sampling_rate: float
    unrounded: bool
    encrypted: int
    finding: Finding | None
    why: str = ""
    failed: bool = False

    @property
    def flagged(self) -> bool:
        """Whether fault was found, or the site's code failed."""
        return self.failed or (self.finding is not None and self.finding.flagged)


@dataclass(frozen=True)
class AuditReport:
    """The findings of one audit.

    Attributes:
        site: certified name.
        made: unix seconds.
        software: version.
        study: digest of the audited study, hexadecimal; None for references of what the policy allows.
        unaudited: labels or tasks without a release of their own: computed from what was released and paid for.
    """

    site: str
    made: int
    software: str
    study: str | None
    name: str
    rows: tuple[AuditRow, ...]
    unaudited: tuple[str, ...] = ()

    @property
    def flagged(self) -> bool:
        """Whether any release is at fault."""
        return any(row.flagged for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Plain values; an infinite figure is the text "infinite"."""
        rows = [{**_plain(asdict(row)), "flagged": row.flagged} for row in self.rows]
        return {
            "format": FORMAT,
            "site": self.site,
            "made": self.made,
            "software": self.software,
            "study": self.study,
            "name": self.name,
            "level": LEVEL,
            "confidence": CONFIDENCE,
            "flagged": self.flagged,
            "rows": rows,
            "unaudited": list(self.unaudited),
        }


def run_study(
    study: AgreedStudy,
    index: int,
    random: RandomSource,
    encoder: Callable[[Encoder | None], Encode | None],
    *,
    labels: Collection[str] = (),
    trials: int = TRIALS,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[tuple[AuditRow, ...], tuple[str, ...]]:
    """Audit every release of a study, as one of its participants.

    Args:
        index: the site's place among its participants.
        random: where coins, noise and keys come from.
        encoder: finds a program that the study names.
        labels: of tasks to audit; all if empty.
        trials: see :func:`~veilsum_privacy.audit.audit.audit`.
        tell: told the label of each task before it is audited.

    Returns:
        the findings, and labels of tasks that read no record.

    Raises:
        Misuse: the study has no noise, so there is nothing that an audit could find too small.
    """
    if study.study.privacy.noise == "none":
        raise Misuse("The study has no noise: what it releases is exact, and an audit finds nothing that is not known.")
    tasks = [task for task in study.tasks if not labels or task.label in labels]
    subjects = [Subject(task, index) for task in tasks if not task.declaration.derived]
    free = tuple(task.label for task in tasks if task.declaration.derived)
    return _run(subjects, random, encoder, trials, tell), free


def run_references(
    kinds: Sequence[ReferenceTask],
    random: RandomSource,
    *,
    noises: Sequence[NoiseKind],
    units: Sequence[Unit],
    disclosures: Sequence[Disclosure],
    trials: int = TRIALS,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[AuditRow, ...]:
    """Audit a release of each kind in every way that is allowed."""
    subjects = []
    for kind in kinds:
        for unit in units:
            for rate in kind.rates if "joint" in disclosures else ():
                tried = [kind.study(unit=unit, noise=noise, rate=rate).tasks[0] for noise in noises]
                steps = tried[0].declaration.local_steps > 0  # whose noise is the site's own, of whatever kind the study's is
                subjects += [Subject(task) for task in (tried[:1] if steps else tried)]
            if "per-site" in disclosures and "per-site" in kind.disclosures:
                subjects.append(Subject(kind.study(unit=unit, noise="local", disclosure="per-site").tasks[0]))
    return _run(subjects, random, lambda _: None, trials, tell)


def _run(
    subjects: Sequence[Subject],
    random: RandomSource,
    encoder: Callable[[Encoder | None], Encode | None],
    trials: int,
    tell: Callable[[str], None],
) -> tuple[AuditRow, ...]:
    rows = []
    for subject in subjects:
        tell(subject.agreed.label)
        rows.append(_row(subject, random, encoder, trials, LEVEL / len(subjects)))
    return tuple(rows)


@made_up()  # no record is a person's here, and so no file of frozen weights is needed
def _row(
    subject: Subject, random: RandomSource, encoder: Callable[[Encoder | None], Encode | None], trials: int, level: float
) -> AuditRow:
    agreed = subject.agreed
    declared, privacy = agreed.declaration, agreed.study.privacy
    training = declared.local_steps > 0
    row = AuditRow(
        label=declared.label,
        task=declared.task,
        noise="training" if training else agreed.noise(agreed.study.sites).kind,
        unit=privacy.unit,
        disclosure=declared.disclosure,
        sampling_rate=declared.sampling_rate,
        unrounded=declared.unrounded,
        encrypted=0 if training else SEALED,
        finding=None,
    )
    try:
        route, study = _route(subject, random, encoder)
        rng = np.random.default_rng(_SEED)
        made_up = [as_unit(record, privacy.unit, number) for number, record in enumerate(candidates(study.data, rng))]
        company = made_up_company(made_up, study.data, privacy.unit, rng)
        found = audit(route, made_up, company, random, delta=privacy.delta, level=level, trials=trials)
    except (HostileInput, Misuse) as error:
        return replace(row, encrypted=0, why=str(error), failed=not isinstance(error, NoCanary))
    return replace(row, encrypted=min(row.encrypted, found.releases), finding=found)


def _route(
    subject: Subject, random: RandomSource, encoder: Callable[[Encoder | None], Encode | None]
) -> tuple[ReleaseRoute, Any]:
    tried, arrays = made_up_broadcast(subject.agreed)
    study = tried.study
    plan = tried.plan(study.sites, study.sites)
    place = SitePlace(subject.index, made_up_statistics(tried), encoder(study.encoder), random=random)
    if plan.noise.kind == "training":
        return StepRoute(plan, arrays, place), study
    return SumRoute(plan, arrays, place, sealed=SEALED), study


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return "infinite" if isinstance(value, float) and math.isinf(value) else value
