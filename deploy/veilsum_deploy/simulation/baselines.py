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
from veilsum_deploy.simulation.scores import Encode, Scores, head_figures, labelled, mean_figures, score, scored
from veilsum_deploy.simulation.study import Beside, SimulationDraft, compiled
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
        return Beside(Scores(), note="a linear discriminant needs classes")
    if kind in OF_RECORDS:
        return Beside((alone if kind == "alone" else pooled)(dealt, draft.schema, draft.encode))
    names = sorted(dealt.training, key=str.encode)
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
    for domain, dataset in deal.tests.items():
        records = encode(labelled(dataset.records))
        own = [heads[site] for site in deal.sites_of(domain)]
        accuracies[domain] = statistics.fmean(head_accuracy(head, records, schema) for head in own)
        figures.append(mean_figures([head_figures(head, records, schema) for head in own]))
    return scored(deal, accuracies, mean_figures(figures))


def pooled(deal: Deal, schema: DatasetSchema, encode: Encode) -> Scores:
    """The linear discriminant of all sites' records in one place, in the clear."""
    head = _head(encode(pool([dataset.records for dataset in deal.training.values()])), schema)
    tests = {domain: encode(labelled(dataset.records)) for domain, dataset in deal.tests.items()}
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
    chosen = list(names)
    if len(names) > MOST_ALONE and not dealt.home:
        chosen = [names[index * len(names) // MOST_ALONE] for index in range(MOST_ALONE)]
        chosen = sorted({*chosen, *(own[0] for own in dealt.sites.values())}, key=str.encode)
    by_site = {name: _central(draft, study, dealt.training[name].records, 1) for name in chosen}
    shares, figures = {}, []
    for domain, dataset in dealt.tests.items():
        part = replace(dealt, tests={domain: dataset})
        own = [by_site[name] for name in dealt.sites_of(domain) if name in by_site]
        told = [score(result, part, draft.schema, None, draft.program) for result in own]
        if told and all(one.accuracies for one in told):
            shares[domain] = statistics.fmean(one.accuracies[domain] for one in told)
        figures.append(mean_figures([one.held_out for one in told]))
    found = mean_figures(figures)
    if not shares and not found:
        return Beside(Scores(), note=_NONE)
    note = f"of {len(chosen)} of {len(names)} sites" if len(chosen) < len(names) else ""
    return Beside(scored(dealt, shares if len(shares) == len(dealt.tests) else {}, found), note=note)
