"""What stands beside a result: what each site reaches alone, what pooled records do, with and without the study's epsilon.

"alone" and "pooled" are linear discriminants in the clear, whatever the study trains. "trained-alone" and "trained-pooled" run
the study's own method without noise on one site's records, and on all of them in one place. "central" runs it on all records
with the study's noise, drawn once a release: what the same epsilon buys where records can be pooled. "personal" runs the study
and moves its model at each site by the site's own records.

A study with all records in one place: the same tasks and the same accounting, with a release's noise drawn once.

It is what a study would be if records could be pooled: for the method "fedsgd" it is central DP-SGD of noise S. It is for
comparison only. A study in which sites differ, by alignment or by what each discloses, has no such counterpart.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from veilsum.request import PrivacyRequest
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.heads import LinearHead
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.service.runner import RoundLostError
from veilsum_deploy.evaluation import accuracy as head_accuracy
from veilsum_deploy.evaluation import exact_head, pool
from veilsum_deploy.simulation.baseline_names import OF_RECORDS
from veilsum_deploy.simulation.chunks import adds_up, for_many
from veilsum_deploy.simulation.deal import Deal
from veilsum_deploy.simulation.plain import run_plain
from veilsum_deploy.simulation.scores import (
    Encode,
    Kept,
    Scores,
    head_figures,
    labelled,
    labelled_rows,
    labelled_tests,
    mean_figures,
    score,
    scored,
)
from veilsum_deploy.simulation.study import Beside, Program, SimulationDraft, compiled
from veilsum_node.errors import DataError, HostileInput, Misuse
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_participant.applying.model import Model
from veilsum_participant.applying.personal import personalise
from veilsum_participant.applying.recipe import OwnAlignment
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
from veilsum_privacy.mechanism.noise_plan import NoisePlan
from veilsum_privacy.results.release_names import release_digest
from veilsum_privacy.results.result import Result
from veilsum_privacy.securesum.context import decode_broadcast, encode_broadcast
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Study, study_digest
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask, RoundPlan
from veilsum_privacy.tasks.base import Records, TrainingTask

EXPECTED = "expected_records"
"""Parameter of tasks that train: how many records a site is expected to have."""

MOST_ALONE = 16
"""Sites that train their own model alone, evenly chosen among all of them."""


def beside(kind: str, draft: SimulationDraft, dealt: Deal, clock: Callable[[], int]) -> Beside:
    """Compute a baseline on the records that were dealt.

    Raises:
        VeilsumError: the study has no such baseline.
    """
    if kind in OF_RECORDS and not draft.schema.classes:
        return Beside(Scores(), note="a linear discriminant needs classes")
    if kind in OF_RECORDS:
        return Beside((alone if kind == "alone" else pooled)(dealt, draft.schema, draft.encode))
    names = sorted(dealt.training, key=str.encode)
    if kind == "personal":
        return _each_personal(draft, dealt, names, clock)
    own = draft if kind == "central" else quiet(draft)
    study = compiled(own, "0" * 64, names, clock)
    if kind == "trained-alone":
        return _each_alone(own, study, dealt, names)
    result = _central(own, study, pool([dealt.training[name].records for name in names]), len(names))
    found = score(result, dealt, draft.schema, None, draft.program)
    return Beside(found, study.privacy.epsilon, "" if found.accuracies or found.held_out else _NONE)


_NONE = "the method predicts nothing"


def alone(deal: Deal, schema: DatasetSchema, encode: Encode) -> Scores:
    """Linear discriminants that each site makes of its own records in the clear, on its own domain.

    A domain's figures are averages over its sites, or over all where it has none.
    """
    heads = {site: _head(encode(dataset.records), schema) for site, dataset in deal.training.items()}
    accuracies, figures = {}, []
    for domain in labelled_tests(deal):
        tests = [(heads[site], deal.own(domain, site)) for site in deal.sites_of(domain)]
        told = [(head, labelled(test.records)) for head, test in tests if test is not None]
        own = [(head, encode(records)) for head, records in told if len(records)]
        accuracies[domain] = statistics.fmean(head_accuracy(head, records, schema) for head, records in own)
        figures.append(mean_figures([head_figures(head, records, schema) for head, records in own]))
    return scored(deal, accuracies, mean_figures(figures))


def pooled(deal: Deal, schema: DatasetSchema, encode: Encode) -> Scores:
    """The linear discriminant of all sites' records in one place, in the clear."""
    head = _head(encode(pool([dataset.records for dataset in deal.training.values()])), schema)
    tests = {domain: encode(labelled(dataset.records)) for domain, dataset in labelled_tests(deal).items()}
    accuracies = {domain: head_accuracy(head, records, schema) for domain, records in tests.items()}
    return scored(deal, accuracies, head_figures(head, pool(list(tests.values())), schema))


def _head(records: Records, schema: DatasetSchema) -> LinearHead | None:
    try:
        return exact_head(records, schema)
    except DataError:  # a site whose few records are all incomplete can make no classifier
        return None


def quiet(draft: SimulationDraft) -> SimulationDraft:
    """The study without noise."""
    return replace(draft, request=draft.request.model_copy(update={"privacy": PrivacyRequest(noise="none")}))


def _central(draft: SimulationDraft, study: Study, records: Records, holders: int) -> Result:
    federation = CentralFederation(study, records, draft.broadcast, holders=holders, encode=draft.program)
    return get_method(study.method).run(federation)


def _each_alone(draft: SimulationDraft, study: Study, dealt: Deal, names: Sequence[str]) -> Beside:
    """Sites' own models on their domain's test records, or on all of no domain of theirs, averaged over sites."""
    chosen = _chosen(dealt, names)
    by_site = {name: _central(draft, study, dealt.training[name].records, 1) for name in chosen}
    return _by_site(by_site, draft, dealt, names, None)


def _each_personal(draft: SimulationDraft, dealt: Deal, names: Sequence[str], clock: Callable[[], int]) -> Beside:
    """Sites' personal models, tested as sites' own are."""
    study, result, kept = run_plain(draft, dealt, clock)
    if "not_estimable" in result.summary or not result.application.get("head"):
        return Beside(Scores(), study.privacy.epsilon, _NONE)
    model = Model.from_result(result, draft.program)
    alignment = model.recipe.alignment
    source = alignment.source if isinstance(alignment, OwnAlignment) else None
    by_site = {}
    for name in _chosen(dealt, names):
        own = None if source is None else kept(name, source)
        try:
            found = personalise(model, dealt.training[name].records, schema=draft.schema, site=name, kept=own)
        except DataError:  # a site without a record that can be learnt from has the released model
            by_site[name] = result
        else:
            by_site[name] = found.result(result)
    return replace(_by_site(by_site, draft, dealt, names, kept), epsilon=study.privacy.epsilon)


def _chosen(dealt: Deal, names: Sequence[str]) -> list[str]:
    """The sites that have a model of their own: all, or :data:`MOST_ALONE` and one of each domain."""
    if len(names) <= MOST_ALONE or dealt.home:
        return list(names)
    chosen = [names[index * len(names) // MOST_ALONE] for index in range(MOST_ALONE)]
    return sorted({*chosen, *(own[0] for own in dealt.sites.values())}, key=str.encode)


def _by_site(
    by_site: Mapping[str, Result], draft: SimulationDraft, dealt: Deal, names: Sequence[str], kept: Kept | None
) -> Beside:
    """Each site's model on the test records of its domain, or on all where it has none, averaged over sites."""
    shares, figures = {}, []
    wanted = labelled_tests(dealt) if draft.schema.classes else dealt.tests
    for domain in wanted:
        tests = {name: dealt.own(domain, name) for name in dealt.sites_of(domain) if name in by_site}
        parts = {
            name: replace(dealt, tests={domain: test}, home={domain: name}, owners={})
            for name, test in tests.items()
            if test is not None and (not draft.schema.classes or labelled_rows(test.records).any())
        }
        told = [score(by_site[name], part, draft.schema, kept, draft.program) for name, part in parts.items()]
        if told and all(one.accuracies for one in told):
            shares[domain] = statistics.fmean(one.accuracies[domain] for one in told)
        figures.append(mean_figures([one.held_out for one in told]))
    found = mean_figures(figures)
    if not shares and not found:
        return Beside(Scores(), note=_NONE)
    note = f"of {len(by_site)} of {len(names)} sites" if len(by_site) < len(names) else ""
    return Beside(scored(dealt, shares if len(shares) == len(wanted) else {}, found), note=note)


class CentralFederation(Federation):
    """Implements :class:`~veilsum_coordinator.parts.federation.Federation` on records in one place.

    A sum over records comes as that of all participants whose records are here. Any other vector, as a trained model's, comes
    as that of one.

    Args:
        study: the compiled study, as the sites would run it.
        records: of all of them, or of one for what it reaches alone.
        encoder: arrays of the study's projection.
        holders: how many sites the records are of.
        random: where samples and noise come from.

    Raises:
        Misuse: the study has no central counterpart.
    """

    def __init__(
        self,
        study: Study,
        records: Records,
        encoder: Mapping[str, Floats] | None = None,
        *,
        holders: int | None = None,
        encode: Program | None = None,
        random: RandomSource = SYSTEM_RANDOM,
    ) -> None:
        if any(task.disclosure != "joint" or task.keep or task.source is not None for task in study.tasks):
            raise Misuse("A study whose sites align or disclose by themselves cannot be run with records in one place.")
        super().__init__(study, encoder)
        self._records, self._encode, self._random = records, encode, random
        self._released: Counter[str] = Counter()
        self._states: dict[str, Mapping[str, Floats]] = {}
        self._key = study_digest(study.to_bytes())
        self._holders = study.sites if holders is None else holders
        self._prepared = {task.label: self._prepare(task) for task in AgreedStudy(study).tasks}

    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        """Run one round of a declared task on all records, whoever is asked for.

        Raises:
            HostileInput: the study declares no such task.
            RoundLostError: its releases are used up.
        """
        if label not in self._prepared:
            raise HostileInput("The study declares no task with that label.")
        plan = self._prepared[label]
        task = plan.task
        if self._released[label] >= plan.declaration.releases:
            raise RoundLostError(f"The releases of {label} are used up.")
        arrays = decode_broadcast(encode_broadcast({**self.encoder, **(broadcast or {})}, task.single), task.single)
        place = SitePlace(0, {}, self._encode, (0,), self._states.get(label, {}), self._random)
        part = compute_sum(plan, self._records, arrays, place)
        if part.state:
            self._states[label] = part.state
        total = plan.noised(part.total, 0, self._random)
        self._released[label] += 1
        cohort = self.study.participants[: self._holders if adds_up(task.task) else 1]
        number = self._released.total()
        digest = release_digest(self._key, number, number, total.astype("<i8").tobytes())
        std = task.block_std(math.sqrt(plan.spread if plan.noise.drawn else 0))
        return Release(label, number, task.blocks(total), std, tuple(cohort), digest)

    def _prepare(self, task: AgreedTask) -> RoundPlan:
        """The plan of a round with room for all records and the whole noise in one draw."""
        plan = task.plan(task.study.sites, task.study.sites)
        if isinstance(task.task, TrainingTask):
            return replace(plan, task=self._pooled(task))
        if plan.noise.drawn:
            plan = replace(plan, noise=NoisePlan("local", plan.noise.variance, 1, plan.noise.colluders))
        return for_many(plan, self._holders)

    def _pooled(self, task: AgreedTask) -> AgreedTask:
        """A task that trains, at a site with all records: it may hold that many, and expects that many."""
        data, parameters = task.study.data, dict(task.declaration.parameters)
        if EXPECTED in parameters:  # steps are divided by it
            parameters[EXPECTED] = int(parameters[EXPECTED]) * self._holders
        data = data.model_copy(update={"max_records": data.max_records * self._holders})
        whole = AgreedStudy(task.study.model_copy(update={"data": data}))
        return AgreedTask(whole, task.declaration.model_copy(update={"parameters": parameters}))
