"""A federation without encryption, for fast simulation: the same tasks, clipping, grid, clamp and noise shares, added up.

Every site takes part in every round that it may be in. There are no keys, masks, ledgers or policies, and so no protection:
all records are in this process anyway. The released integers are those of the protocol, for the same noise; of sites whose
gradients are added together, up to rounding.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.parts.federation import Federation, Release, read_release
from veilsum_coordinator.service.runner import RoundLostError
from veilsum_deploy.simulation.chunks import Chunk, Part, Sites, compute_chunk
from veilsum_deploy.simulation.deal import Deal
from veilsum_deploy.simulation.engines import Engine, SerialEngine, Shared
from veilsum_deploy.simulation.record import RoundRecord, RunRecorder, SiteStates
from veilsum_deploy.simulation.scores import Kept
from veilsum_deploy.simulation.study import SimulationDraft, compiled
from veilsum_node.errors import Misuse
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_privacy.results.release_names import release_digest
from veilsum_privacy.results.result import Result
from veilsum_privacy.securesum.context import broadcast_digest, decode_broadcast, encode_broadcast
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.feature_maps import Encode


@dataclass(frozen=True)
class PlainSite:
    """A simulated site.

    Attributes:
        records: as the schema gives them, or encoded already where the study's encoder is a program and ``encode`` is None.
        noise_random: where its noise comes from.
    """

    records: Records
    noise_random: RandomSource = SYSTEM_RANDOM
    encode: Encode | None = None


class PlainFederation(Federation):
    """Implements :class:`~veilsum_coordinator.parts.federation.Federation` by plain addition.

    Args:
        sites: by name, exactly the study's participants.
        encoder: arrays of the study's projection, which every round broadcasts.
        engine: where chunks of sites are computed; None for this process.
        recorder: keeps rounds, and gives back those of an earlier process: these are not computed again.
        batched: whether sites may be computed together (:mod:`veilsum_deploy.simulation.chunks`).

    Attributes:
        sums: the released integers so far, in grid units, in order.

    Raises:
        Misuse: other sites than the study's, or an engine for sites whose programs cannot travel.
    """

    def __init__(
        self,
        study: Study,
        sites: Mapping[str, PlainSite],
        encoder: Mapping[str, Floats] | None = None,
        *,
        engine: Engine | None = None,
        recorder: RunRecorder | None = None,
        batched: bool = True,
    ) -> None:
        if set(sites) != set(study.participants):
            raise Misuse("The simulated sites are not the study's participants.")
        encodes = {id(site.encode): site.encode for site in sites.values()}
        if len(encodes) > 1:
            raise Misuse("All simulated sites have the study's one program.")
        self.sums: list[Integers] = []
        super().__init__(study, encoder)
        self._recorder, self._batched = recorder, batched
        self._released: Counter[tuple[str, str]] = Counter()  # by label and member, as each participant counts its own
        self._sources = [sites[name].noise_random for name in study.participants]
        self._states = SiteStates(study.sites) if recorder is None else recorder.states(study.sites)
        self._sites = Sites(study, tuple(sites[name].records for name in study.participants), next(iter(encodes.values())))
        self._engine = None if engine is None or engine.workers == 1 else engine
        self._shared = (self._engine or SerialEngine()).share(self._sites)

    def kept_blocks(self, site: str, label: str) -> dict[str, Floats]:
        """Blocks of the noised statistic that a site kept of a task, in their own units.

        Raises:
            KeyError: it kept none.
        """
        place = self.study.participants.index(site)
        return self._sites.agreed.task(label).kept_blocks(self._states.kept[place][label])[0]

    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        """Run one round of a declared task.

        Raises:
            HostileInput: the study declares no such task.
            RoundLostError: its releases are used up, or nobody may take part.
            StateError: the recorded rounds are of another course of the study.
        """
        study = self.study
        chosen = None if members is None else set(members)
        places = tuple(i for i, name in enumerate(study.participants) if chosen is None or name in chosen)
        cohort = tuple(study.participants[index] for index in places)
        if not cohort:
            raise RoundLostError("No participant may take part in the round.")
        plan = self._sites.plan(label, len(cohort))
        if max(self._released[label, name] for name in cohort) >= plan.declaration.releases:
            raise RoundLostError(f"The releases of {label} are used up.")
        encoded = encode_broadcast({**self.encoder, **(broadcast or {})}, plan.task.single)
        arrays = decode_broadcast(encoded, plan.task.single)
        own = None if self._recorder is None else RoundRecord(label, places, broadcast_digest(encoded))
        total = None if self._recorder is None or own is None else self._recorder.recorded(own)
        if total is None:
            total = self._computed(label, arrays, places)
            if self._recorder is not None and own is not None:
                self._recorder.append(own, total, self._states)
        self._released.update((label, name) for name in cohort)
        self.sums.append(total)
        number = len(self.sums)
        digest = release_digest(self._sites.agreed.digest, number, number, total.astype("<i8").tobytes())
        return read_release(plan.task, total, number, cohort, digest)

    def _computed(self, label: str, arrays: Mapping[str, Floats], places: tuple[int, ...]) -> Integers:
        """Every member's noised vector, added up; what members keep is noted."""
        engine = self._engine or SerialEngine()
        broadcast, cuts = engine.share(arrays), np.array_split(np.array(places), min(len(places), engine.workers))
        chunks = [self._chunk(label, broadcast, places, tuple(cut.tolist())) for cut in cuts]
        # In this process with all its threads, which a serial engine would not use.
        parts = [*map(compute_chunk, chunks)] if self._engine is None else [*engine.map(compute_chunk, chunks)]
        broadcast.drop()
        total = np.zeros_like(parts[0].total)
        for chunk, part in zip(chunks, parts, strict=True):
            total += part.total
            self._note(label, chunk.members, part)
        return total

    def _chunk(
        self, label: str, broadcast: Shared[Mapping[str, Floats]], cohort: tuple[int, ...], members: tuple[int, ...]
    ) -> Chunk:
        states = self._states
        return Chunk(
            self._shared,
            broadcast,
            label,
            cohort,
            members,
            tuple(self._sources[index] for index in members),
            tuple(states.trained[index].get(label, {}) for index in members),
            tuple(states.kept[index] for index in members),
            self._batched,
        )

    def _note(self, label: str, members: tuple[int, ...], part: Part) -> None:
        for index, source, state in zip(members, part.sources, part.states, strict=True):
            self._sources[index] = source
            if state:
                self._states.trained[index][label] = state
        for index, kept in zip(members, part.kept, strict=False):
            self._states.kept[index][label] = kept


def run_plain(draft: SimulationDraft, dealt: Deal, clock: Callable[[], int]) -> tuple[Study, Result, Kept]:
    """Run a study once without encryption; the last of the three looks up what a site kept.

    Raises:
        VeilsumError: the study cannot be compiled for these sites, or its method refuses.
    """
    study = compiled(draft, "0" * 64, list(dealt.training), clock)
    federation = PlainFederation(study, plain_sites(draft, dealt), draft.broadcast)
    return study, get_method(study.method).run(federation), federation.kept_blocks


def plain_sites(draft: SimulationDraft, dealt: Deal) -> dict[str, PlainSite]:
    return {name: PlainSite(dataset.records, encode=draft.program) for name, dataset in dealt.training.items()}
