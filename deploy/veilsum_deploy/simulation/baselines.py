"""What stands beside a result: what each site reaches alone, what pooled records do, with and without the study's epsilon.

"alone" and "pooled" are linear discriminants in the clear, whatever the study trains. "trained-alone" and "trained-pooled" run
the study's own method without noise on one site's records, and on all of them in one place. "central" runs it on all records
with the study's noise, drawn once a release: what the same epsilon buys where records can be pooled.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from veilsum.request import PrivacyRequest
from veilsum_aggregation.heads import LinearHead
from veilsum_coordinator.methods import get_method
from veilsum_deploy.evaluation import accuracy as head_accuracy
from veilsum_deploy.evaluation import exact_head, pool
from veilsum_deploy.simulation.baseline_names import OF_RECORDS
from veilsum_deploy.simulation.central import CentralFederation
from veilsum_deploy.simulation.deal import Deal
from veilsum_deploy.simulation.held_out import held_out, mean_figures, of_head
from veilsum_deploy.simulation.scores import Encode, labelled
from veilsum_deploy.simulation.study import Beside, SimulationDraft, accuracies_of, compiled
from veilsum_node.errors import DataError
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records

MOST_ALONE = 16
"""Sites that train their own model alone, evenly chosen among all of them."""


def beside(kind: str, draft: SimulationDraft, dealt: Deal, clock: Callable[[], int]) -> Beside:
    """Compute a baseline on the records that were dealt.

    Raises:
        VeilsumError: the study has no such baseline.
    """
    if kind in OF_RECORDS and not draft.schema.classes:
        return Beside({}, None, "a linear discriminant needs classes")
    if kind == "alone":
        return alone(dealt, draft.schema, draft.encode)
    if kind == "pooled":
        return pooled(dealt, draft.schema, draft.encode)
    names = sorted(dealt.training, key=str.encode)
    own = draft if kind == "central" else quiet(draft)
    study = compiled(own, "0" * 64, names, clock)
    if kind == "trained-alone":
        return _each_alone(own, study, dealt, names)
    result = _central(own, study, pool([dealt.training[name].records for name in names]), len(names))
    accuracies, figures = accuracies_of(result, dealt, draft, None) or {}, _figures(result, dealt, draft)
    return Beside(accuracies, study.privacy.epsilon, "" if accuracies or figures else _NONE, held_out=figures)


_NONE = "the method predicts nothing"


def alone(deal: Deal, schema: DatasetSchema, encode: Encode) -> Beside:
    """Linear discriminants that each site makes of its own records in the clear, on its own domain.

    A domain's figures are averages over its sites, or over all where it has none.
    """
    heads = {site: _head(encode(dataset.records), schema) for site, dataset in deal.training.items()}
    accuracies, figures = {}, []
    for domain, dataset in deal.tests.items():
        records = encode(labelled(dataset.records))
        own = [heads[site] for site in deal.sites_of(domain)]
        accuracies[domain] = statistics.fmean(head_accuracy(head, records, schema) for head in own)
        figures.append(mean_figures([of_head(head, records, schema) for head in own]))
    return Beside(accuracies, held_out=mean_figures(figures))


def pooled(deal: Deal, schema: DatasetSchema, encode: Encode) -> Beside:
    """The linear discriminant of all sites' records in one place, in the clear."""
    head = _head(encode(pool([dataset.records for dataset in deal.training.values()])), schema)
    tests = {domain: encode(labelled(dataset.records)) for domain, dataset in deal.tests.items()}
    accuracies = {domain: head_accuracy(head, records, schema) for domain, records in tests.items()}
    return Beside(accuracies, held_out=of_head(head, pool(list(tests.values())), schema))


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


def _figures(result: Result, dealt: Deal, draft: SimulationDraft) -> dict[str, float]:
    return held_out(result, dealt, draft.schema, None, draft.program) or {}


def _each_alone(draft: SimulationDraft, study: Study, dealt: Deal, names: Sequence[str]) -> Beside:
    """Sites' own models on their domain's test records, or on all of no domain of theirs, averaged over sites."""
    chosen = list(names)
    if len(names) > MOST_ALONE and not dealt.home:
        chosen = [names[index * len(names) // MOST_ALONE] for index in range(MOST_ALONE)]
        chosen = sorted({*chosen, *(own[0] for own in dealt.sites.values())}, key=str.encode)
    by_site = {name: _central(draft, study, dealt.training[name].records, 1) for name in chosen}
    shares, figures = {}, []
    for domain, dataset in dealt.tests.items():
        part = replace(dealt, tests={domain: dataset})
        own = [by_site[name] for name in dealt.sites_of(domain) if name in by_site]
        told = [found[domain] for result in own if (found := accuracies_of(result, part, draft, None)) is not None]
        if told and len(told) == len(own):
            shares[domain] = statistics.fmean(told)
        figures.append(mean_figures([_figures(result, part, draft) for result in own]))
    found, note = mean_figures(figures), f"of {len(chosen)} of {len(names)} sites" if len(chosen) < len(names) else ""
    if not shares and not found:
        return Beside({}, None, _NONE)
    return Beside(shares if len(shares) == len(dealt.tests) else {}, None, note, held_out=found)
