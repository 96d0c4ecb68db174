"""The site's policy held against a study, a roster and a cohort: checks that name every rule that is broken.

Each ``*_faults`` yields one :class:`Refusal` for each broken rule, with its figures and what to do; :func:`refuse` raises them
as one. Only codes leave the site. Nothing is read but the hashes of configured encoders. What needs the ledger is checked in
:mod:`veilsum_participant.protocol.budgets`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from veilsum_node.errors import ConfigurationError, HostileInput, Misuse, Refusal, RefusalCode
from veilsum_node.phrases import counted, listed, rounded
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.securesum.graph import NEIGHBOURS, MaskGraph, is_complete, least_separators
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.study.schema import header_conflict
from veilsum_privacy.study.study import Study, TaskDeclaration

if TYPE_CHECKING:
    from veilsum_participant.settings.config import ParticipantConfig, Policy
    from veilsum_participant.settings.dataset_config import DatasetConfig
    from veilsum_privacy.computation.declared import DeclaredStudy
    from veilsum_privacy.mechanism.noise_plan import NoisePlan
    from veilsum_privacy.securesum.roster import Member

MAX_VALUES = 2**26
"""Longest vector of a task; a longer one would take gigabytes of a site's memory for each record."""

JOINT_ONLY: frozenset[str] = frozenset(
    {"calibration-step", "hazard-step", "newton-step", "score-products", "tables", "tree-gradients", "within-moments"}
)
"""Tasks that have no sum which shows each site's own part."""

_PIN = 'Pin the peers\' key fingerprints under policy.trusted, or ask for a study with noise = "local".'


def refuse(faults: Iterable[Refusal]) -> None:
    """Raise all faults as one.

    Raises:
        Refusal: there is at least one.
    """
    refusal = Refusal.of(faults)
    if refusal is not None:
        raise refusal


def study_faults(
    agreed: DeclaredStudy, analyst: str, config: ParticipantConfig, own: str, delta: float | None
) -> Iterator[Refusal]:
    """What a study breaks before enrolment, budgets apart; of an analyst who is not accepted only that.

    Args:
        analyst: certified name of who signed it.
        own: this site's certified name.
        delta: of the dataset's budget, None if it has none; see :func:`term_faults`.
    """
    strangers = [*analyst_faults(analyst, config.policy)]
    yield from strangers
    if strangers:
        return
    yield from term_faults(agreed, config, own, delta)
    yield from column_faults(agreed.study, config)
    yield from invited_faults(agreed.study, config.policy, own)


def analyst_faults(name: str, policy: Policy) -> Iterator[Refusal]:
    """Whether the site accepts studies of this analyst."""
    if "*" not in policy.analysts and name not in policy.analysts:
        yield _not_among(RefusalCode.ANALYST, "Analyst", name, "analysts")


def term_faults(agreed: DeclaredStudy, config: ParticipantConfig, own: str, delta: float | None) -> Iterator[Refusal]:
    """What a study asks for against the policy: before enrolment, and again before consent, for the operator may have made the
    policy stricter.

    The study's own epsilon is an analyst's word; what counts is computed from the noise that its tasks declare, at the delta
    of the dataset's budget (the study's where the dataset has no budget, and then nothing can be reserved).
    """
    study, policy = agreed.study, config.policy
    if own not in study.participants:
        yield Refusal(RefusalCode.STUDY_INVALID, "The study does not name this participant.")
    if study.method not in policy.methods:
        yield _not_among(RefusalCode.METHOD, "Method", study.method, "methods", _accept("policy.methods"))
    if missing := [name for name in policy.require if name not in study.statements]:
        yield Refusal(
            RefusalCode.PURPOSE,
            f"The study does not state {listed(missing)}, which policy.require demands.",
            f"Ask for a study that states {listed(missing)} in its study.toml.",
        )
    if study.expires - study.created > 86400 * policy.study_days:
        yield Refusal(RefusalCode.STUDY_INVALID, f"The study is open for more than {counted(policy.study_days, 'day')}.")
    yield from _dataset_faults(study, config)
    if isinstance(study.encoder, Program):
        yield from _file_faults(config, study.encoder.sha256)
    yield from _noise_kind_faults(study, policy)
    yield from _epsilon_faults(study, policy, delta)
    yield from _cohort_rule_faults(study, policy)
    yield from _printed_faults(study, policy)
    if any(weight != 1 for weight in study.weights.values()):
        yield Refusal(RefusalCode.WEIGHTS, "The study weighs sites unequally.")
    faults = [fault for declaration in study.tasks for fault in _task_faults(agreed, declaration, config)]
    yield from faults
    if not any(fault.code in (RefusalCode.TASK, RefusalCode.DISCLOSURE, RefusalCode.STUDY_INVALID) for fault in faults):
        try:
            agreed.ring(study.sites)
        except Misuse as error:
            yield Refusal(RefusalCode.PRECISION, error.message, error.advice)


def _not_among(code: RefusalCode, what: str, value: str, key: str, advice: str = "") -> Refusal:
    """What a study asks for is none of what a list of the policy names."""
    return Refusal(code, f"{what} {value!r} is not among policy.{key}.", advice)


def _accept(key: str) -> str:
    return f"If the site agrees to it, add it to {key} and start the participant again."


def _dataset_faults(study: Study, config: ParticipantConfig) -> Iterator[Refusal]:
    unit = study.privacy.unit
    if unit not in config.policy.units:
        yield _not_among(RefusalCode.UNIT, "The unit of privacy", unit, "units")
    elif unit == "site" and study.privacy.noise == "none":
        yield Refusal(RefusalCode.UNIT, "A whole site is a unit of studies with noise alone.", "Ask for noise.")
    dataset = config.datasets.get(study.dataset)
    if dataset is None:
        yield Refusal(RefusalCode.DATASET, f"Dataset {study.dataset!r} is not offered here.")
    elif unit == "subject" and dataset.subject is None:
        yield Refusal(
            RefusalCode.UNIT,
            f"It is unknown which records of dataset {study.dataset!r} are of one subject.",
            f"Name the column under datasets.{study.dataset}.subject, if the data has one.",
        )
    elif unit == "record" and dataset.several_rows:
        yield Refusal(
            RefusalCode.UNIT,
            f"A person may have several records of dataset {study.dataset!r}.",
            f'Ask for privacy.unit = "subject"; or, if nobody has two, state datasets.{study.dataset}.joined = false.',
        )
    if dataset is not None and study.privacy.noise == "none":
        yield from _exact_faults(study, dataset)
    if dataset is not None and dataset.csv and dataset.header != study.data.header:
        yield Refusal(
            RefusalCode.DATASET,
            f"Dataset {study.dataset!r}: {header_conflict(study.data)}",
            f"State datasets.{study.dataset}.header as the file is, or ask for a schema that fits it.",
        )


def _exact_faults(study: Study, dataset: DatasetConfig) -> Iterator[Refusal]:
    """Exact sums count all records that the site may hold: of two that are cut unlike, the difference is its own vector."""
    if not dataset.most_records:
        yield Refusal(
            RefusalCode.DISCLOSURE,
            f"This site has not stated how many records dataset {study.dataset!r} may come to hold,"
            " which exact sums could show.",
            f"Let it state datasets.{study.dataset}.most_records, a round number with room to grow; or ask for noise.",
        )
    elif study.data.max_records < dataset.most_records:
        yield Refusal(RefusalCode.DISCLOSURE, "Without noise all most_records must count.", "Ask for a larger max_records.")


def column_faults(study: Study, config: ParticipantConfig) -> Iterator[Refusal]:
    """A study's column names against those that the site states of the dataset: before enrolment, and without the data.

    What a source itself calls its columns may be a record, where a CSV file lacks the header that it should have. Were a
    study's names held against that, its acceptance would tell an analyst who guesses. So of such a source they are stated.
    """
    dataset = config.datasets.get(study.dataset)
    if dataset is None:
        return
    key = f"datasets.{study.dataset}.columns"
    if not dataset.columns:
        if dataset.named_in_records:
            yield Refusal(
                RefusalCode.DATASET,
                f"Dataset {study.dataset!r}: this site has not stated which columns studies may ask for.",
                f"State them as {key}; `veilsum participant check --columns` shows what the file has.",
            )
        return
    derived = set(dataset.derived)
    asked = [name for name in study.data.file_columns if name not in derived]
    if others := [name for name in asked if name not in dataset.columns]:
        told = listed([repr(name) for name in others[:5]])
        yield Refusal(
            RefusalCode.DATASET,
            f"Dataset {study.dataset!r}: {len(others)} of the {counted(len(asked), 'column')} that the study asks for are not"
            f" among {key}: {told}{', ...' if len(others) > 5 else ''}.",
            "Ask for columns that the site offers; or, if it agrees to these, let it state them.",
        )
    elif not study.data.header and not dataset.header and dataset.source == "file" and study.data.order != dataset.columns:
        yield Refusal(
            RefusalCode.DATASET,
            f"Dataset {study.dataset!r}: the schema's `order` is not {key}.",
            "Both name all columns of the file, in order.",
        )


def _file_faults(config: ParticipantConfig, sha256: str, *, weights: bool = False) -> Iterator[Refusal]:
    from veilsum_participant.settings.encoder_files import WEIGHTS, find_path  # of studies that name a file

    try:
        find_path(config.encoders, sha256, WEIGHTS if weights else "encoder")
    except ConfigurationError as error:
        yield Refusal(RefusalCode.TASK, error.message, error.advice)


def _noise_kind_faults(study: Study, policy: Policy) -> Iterator[Refusal]:
    kinds = [study.privacy.noise]
    if kinds == ["distributed"] and any(task.keep or task.local_steps for task in study.tasks):
        kinds.append("local")  # what a site keeps, or trains, has its own noise alone; its round would be refused
    for kind in kinds:
        if kind not in policy.noise:
            yield _not_among(RefusalCode.NOISE, "Noise", kind, "noise")


def _cohort_rule_faults(study: Study, policy: Policy) -> Iterator[Refusal]:
    """How a study's cohorts may differ, and between whom its masks are shared."""
    rule = study.privacy.cohort_difference
    if rule not in policy.cohort_difference:
        advice = 'Ask for a study with cohort_difference = "strict".' if rule == "allowed" else ""
        yield _not_among(RefusalCode.COHORT_CHANGED, "cohort_difference", rule, "cohort_difference", advice)
    if "neighbours" not in policy.masks and not is_complete(study.sites, study.privacy):
        yield _not_complete(study.sites)


def _printed_faults(study: Study, policy: Policy) -> Iterator[Refusal]:
    """Faults in how few records a study's figures may be made of."""
    printed = study.parameters.get("smallest_cell", 0)
    if study.method == "statistics" and not (isinstance(printed, int) and printed >= policy.smallest_cell):
        yield Refusal(
            RefusalCode.DISCLOSURE,
            f"The study prints figures of fewer than {policy.smallest_cell} records, which is policy.smallest_cell.",
            f"Ask for a study with smallest_cell = {policy.smallest_cell} under [parameters].",
        )


def _epsilon_faults(study: Study, policy: Policy, delta: float | None) -> Iterator[Refusal]:
    privacy = study.privacy
    if privacy.noise == "none":
        if privacy.epsilon is not None:
            yield Refusal(RefusalCode.STUDY_INVALID, "The study states an epsilon, but has no noise.")
        return
    if privacy.delta > policy.max_delta:
        yield Refusal(
            RefusalCode.EPSILON,
            f"The study's delta is {privacy.delta:g}; policy.max_delta is {policy.max_delta:g}.",
            "Ask for a study with a smaller delta (privacy.delta).",
        )
    slack, most = math.fsum(task.slack for task in study.tasks), policy.max_slack * min(privacy.delta, delta or privacy.delta)
    if slack > most * (1 + 1e-9):
        yield Refusal(
            RefusalCode.EPSILON,
            f"The study's steps may reveal a record with probability {rounded(slack)}; policy.max_slack of delta: {most:.9g}.",
            "Ask for a study with less slack (privacy.slack).",
        )
    cost = study_epsilon(study, privacy.delta)
    if privacy.epsilon is None or cost > privacy.epsilon * (1 + 1e-9):
        yield Refusal(RefusalCode.STUDY_INVALID, "The study costs more than its epsilon says.")
    if delta is not None:
        cost = study_epsilon(study, delta)
    if cost > policy.max_epsilon:
        yield Refusal(
            RefusalCode.EPSILON,
            f"The study costs epsilon {rounded(cost)}; policy.max_epsilon is {policy.max_epsilon:.15g}.",
            "Ask for more noise or fewer releases.",
        )


def _task_faults(agreed: DeclaredStudy, declaration: TaskDeclaration, config: ParticipantConfig) -> Iterator[Refusal]:
    policy = config.policy
    if declaration.task not in policy.tasks:
        yield _not_among(RefusalCode.TASK, "Task", declaration.task, "tasks", _accept("policy.tasks"))
        return
    own = declaration.keep or declaration.resolution
    if own and agreed.study.privacy.noise == "none" and "per-site" not in policy.disclosures:
        yield Refusal(
            RefusalCode.DISCLOSURE,
            "Without noise, what follows from a kept statistic, or from training at a site, can be made to reveal its own;"
            " 'per-site' is not among policy.disclosures.",
        )
        return
    if declaration.disclosure not in policy.disclosures:
        advice = _accept("policy.disclosures")
        yield _not_among(RefusalCode.DISCLOSURE, "Disclosure", declaration.disclosure, "disclosures", advice)
        return
    if declaration.task in JOINT_ONLY and declaration.disclosure != "joint":
        yield Refusal(RefusalCode.DISCLOSURE, f"Task {declaration.task!r} cannot be disclosed {declaration.disclosure}.")
        return
    try:
        task = agreed.task(declaration.label)
    except HostileInput as error:
        yield Refusal(RefusalCode.STUDY_INVALID, error.message, error.advice)
        return
    if task.terms.weights:
        yield from _file_faults(config, task.terms.weights, weights=True)
    if task.terms.steers_sites and "per-site" not in policy.disclosures:
        yield Refusal(
            RefusalCode.DISCLOSURE,
            f"What is broadcast for each site acts on its records in task {declaration.label!r}: its sum over all sites can be"
            " made to show any one of them, and 'per-site' is not among policy.disclosures.",
            _accept("policy.disclosures"),
        )
    if task.size > MAX_VALUES:
        yield Refusal(RefusalCode.STUDY_INVALID, f"A task's vector of {task.size} values is larger than any site computes.")


def invited_faults(study: Study, policy: Policy, own: str) -> Iterator[Refusal]:
    """What is known before anyone has shown a key: whether all whom the study names together could satisfy the policy."""
    names = study.participants
    if len(names) < policy.min_cohort:
        yield Refusal(
            RefusalCode.COHORT_SMALL,
            f"The study names {counted(len(names), 'site')}; policy.min_cohort is {policy.min_cohort}.",
        )
    strangers = [name for name in names if name != own and name not in policy.trusted]  # whom no pin can make trusted
    known = len(names) - len(strangers)
    if known < policy.min_trusted:
        yield Refusal(
            RefusalCode.COHORT_TRUST,
            f"{known} of the sites that the study names are trusted, below min_trusted {policy.min_trusted}.",
            f"Not pinned: {', '.join(strangers)}.",
        )
    colluders = study.privacy.assumed_colluders
    if study.privacy.noise == "distributed" and strangers and len(names) - colluders > 1:
        yield Refusal(
            RefusalCode.NOISE,
            f"The study counts the noise of {len(names) - colluders} honest sites; trusted ones less colluders are"
            f" {max(0, known - colluders)}.",
            f"Not pinned: {', '.join(strangers)}. {_PIN}",
        )


def trusted(members: Sequence[Member], policy: Policy, own: str) -> list[str]:
    """Which of the members are trusted: pinned by key fingerprint, and this site itself."""
    pins = policy.trusted
    return [each.name for each in members if each.name == own or pins.get(each.name) == each.identity.fingerprint]


def member_faults(members: Sequence[Member], study: Study, policy: Policy, own: str) -> Iterator[Refusal]:
    """A roster or a cohort against the policy: too small, too few trusted, or a pinned name under another key."""
    smallest = max(policy.min_cohort, study.privacy.min_cohort)
    if len(members) < smallest:
        yield Refusal(RefusalCode.COHORT_SMALL, f"A cohort of {len(members)} is below the smallest of {smallest}.")
    for member in members:
        pinned = policy.trusted.get(member.name)
        if pinned is not None and pinned != member.identity.fingerprint:
            yield Refusal(
                RefusalCode.COHORT_TRUST,
                f"{member.name!r} has a different key than the pinned one.",
                "If the site changed its key, confirm the new fingerprint with its operator and pin it.",
            )
    count = len(trusted(members, policy, own))
    if count < policy.min_trusted:
        yield Refusal(RefusalCode.COHORT_TRUST, f"{count} of the cohort are trusted, below min_trusted {policy.min_trusted}.")


def mask_faults(graph: MaskGraph, members: Sequence[Member], study: Study, policy: Policy, own: str) -> Iterator[Refusal]:
    """Whether masks that only neighbours share are accepted, and hide a roster's or cohort's members well enough.

    What a site is promised of trusted members, to be hidden among them or by their noise, must hold though all others work
    together: the masks must hold the trusted ones together by themselves.
    """
    if graph.complete:
        return
    if "neighbours" not in policy.masks:
        yield _not_complete(len(graph.circle))
    counted_on = [("the cohort", [member.name for member in members])]
    if policy.min_trusted > 1 or study.privacy.noise == "distributed":
        counted_on.append(("its trusted members", trusted(members, policy, own)))
    for whom, names in counted_on:
        needed = min(least_separators(study.privacy), len(names) - 1)
        if (found := graph.separators(names)) < needed:
            yield Refusal(
                RefusalCode.MASKS,
                f"{counted(found, 'member')} could take apart the masks of {whom} by working together; it must need {needed}.",
                "Pin more of the peers' key fingerprints, or ask for a cohort of more of the study's participants, or for a"
                f" study of at most {NEIGHBOURS + 1}.",
            )


def _not_complete(members: int) -> Refusal:
    return Refusal(
        RefusalCode.MASKS,
        f"{members} members share masks with neighbours only; 'neighbours' is not among policy.masks.",
        f"Invite at most {NEIGHBOURS + 1} participants. {_accept('policy.masks')}",
    )


def noise_faults(noise: NoisePlan, members: Sequence[Member], policy: Policy, own: str) -> Iterator[Refusal]:
    """Whether the trusted shares, colluders taken off, carry the noise that the event counts."""
    kind = "local" if noise.kind == "training" else noise.kind
    if kind != "kept" and kind not in policy.noise:
        yield _not_among(RefusalCode.NOISE, "Noise", kind, "noise")
    if noise.honest == 1:  # as in every kind but "distributed"
        return
    counted = len(trusted(members, policy, own)) - noise.colluders
    if counted < noise.honest:
        yield Refusal(
            RefusalCode.NOISE,
            f"The plan counts {noise.honest} honest shares; trusted peers less colluders give {counted}.",
            _PIN,
        )
