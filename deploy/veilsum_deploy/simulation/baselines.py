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
from veilsum_coordinator.methods import get_method
from veilsum_deploy.evaluation import pool
from veilsum_deploy.simulation.central import CentralFederation
from veilsum_deploy.simulation.deal import Deal
from veilsum_deploy.simulation.scores import alone, pooled
from veilsum_deploy.simulation.study import Beside, Draft, accuracies_of, compiled
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records

MOST_ALONE = 16
"""Sites that train their own model alone, evenly chosen among all of them."""


def beside(kind: str, draft: Draft, dealt: Deal, clock: Callable[[], int]) -> Beside:
    """Compute a baseline on the records that were dealt.

    Raises:
        VeilsumError: the study has no such baseline.
    """
    if kind == "alone":
        return Beside(alone(dealt, draft.schema, draft.encode))
    if kind == "pooled":
        return Beside(pooled(dealt, draft.schema, draft.encode))
    names = sorted(dealt.training, key=str.encode)
    own = draft if kind == "central" else quiet(draft)
    study = compiled(own, "0" * 64, names, clock)
    if kind == "trained-alone":
        return _each_alone(own, study, dealt, names)
    accuracies = _central(own, study, pool([dealt.training[name].records for name in names]), len(names), dealt)
    return Beside(accuracies or {}, study.privacy.epsilon, "" if accuracies else _NONE)


_NONE = "the method makes no classifier"


def quiet(draft: Draft) -> Draft:
    """The study without noise."""
    return replace(draft, request=draft.request.model_copy(update={"privacy": PrivacyRequest(noise="none")}))


def _central(draft: Draft, study: Study, records: Records, holders: int, dealt: Deal) -> dict[str, float] | None:
    federation = CentralFederation(study, records, draft.broadcast, holders=holders, encode=draft.program)
    return accuracies_of(get_method(study.method).run(federation), dealt, draft, None)


def _each_alone(draft: Draft, study: Study, dealt: Deal, names: Sequence[str]) -> Beside:
    """Accuracy of sites' own models on their domain's test records, or on all of no domain of theirs, averaged over sites."""
    chosen = list(names)
    if len(names) > MOST_ALONE and not dealt.home:
        chosen = [names[index * len(names) // MOST_ALONE] for index in range(MOST_ALONE)]
        chosen = sorted({*chosen, *(own[0] for own in dealt.sites.values())}, key=str.encode)
    by_site = {name: _central(draft, study, dealt.training[name].records, 1, dealt) for name in chosen}
    if any(found is None for found in by_site.values()):
        return Beside({}, None, _NONE)
    shares = {}
    for domain in dealt.tests:
        sites = [name for name in dealt.sites_of(domain) if name in by_site]
        shares[domain] = statistics.fmean((by_site[site] or {})[domain] for site in sites)
    note = f"of {len(chosen)} of {len(names)} sites" if len(chosen) < len(names) else ""
    return Beside(shares, None, note)
