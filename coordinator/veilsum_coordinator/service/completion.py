"""Studies that failed in their own formulas, completed from what was released to them: no site is asked or charged again.

A method is a function of its releases, and these stay in the journal with their proofs. So a coordinator whose program no
longer fails there runs the method once more when it starts, and holds each round that it asks for against the journal. What
it would ask beyond that nobody answers any more: then the result is the sums, and says so.
"""

import json
import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.federation import NoFurtherRoundError, Release
from veilsum_coordinator.protocol.restoration import ReplayError
from veilsum_coordinator.results.released_models import find_released
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.service.runner import StoredFederation, save_method_result
from veilsum_node.errors import VeilsumError
from veilsum_node.telemetry.logs import about
from veilsum_privacy.securesum.context import broadcast_digest, broadcast_pieces, parse_assignment
from veilsum_privacy.tasks.agreed import AgreedStudy

LOG = logging.getLogger("veilsum.coordinator")


class ReleasedFederation(StoredFederation):
    """Implements :class:`~veilsum_coordinator.parts.federation.Federation` on the releases of a study that is over.

    Args:
        hub, agreed, key, encoder: as of :class:`~veilsum_coordinator.service.runner.StoredFederation`.
    """

    def __init__(self, hub: Hub, agreed: AgreedStudy, key: bytes, encoder: Mapping[str, Floats]) -> None:
        super().__init__(hub, agreed, key, encoder)
        self._left = hub.journal.released(key)
        self._members = len(hub.journal.kept_state(key).get("roster", ()))

    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        """The next release.

        Raises:
            NoFurtherRoundError: there is none.
            ReplayError: the method asks for another round than was released.
        """
        if not self._left:
            raise NoFurtherRoundError(f"the study ended before its next round, {label}")
        row = self._left.pop(0)
        assignment, cohort = parse_assignment(row["assignment"]), tuple(json.loads(row["cohort"]))
        singles = self._agreed.task(label).single if assignment.label == label else ()
        asked = broadcast_digest(broadcast_pieces({**self.encoder, **(broadcast or {})}, singles))
        strangers = members is not None and not set(cohort) <= set(members)
        if assignment.label != label or asked != assignment.broadcast or strangers:
            raise ReplayError(f"round {row['round']} is not the one that the method asks for now", "Submit the study again.")
        plan = self._agreed.task(label).plan(self._members, len(cohort))
        return self._stored(plan, row["round"], cohort, bytes(row["digest"]))


def complete(hub: Hub, key: bytes, results: Path) -> bool:
    """Complete a study that failed in its own formulas; whether it is finished now. It is as before if it fails again."""
    agreed = AgreedStudy.parse(hub.journal.submitted(key).study)
    study = agreed.study
    try:
        federation = ReleasedFederation(hub, agreed, key, find_released(results, study))
        files = save_method_result(hub, federation, results / key.hex())
        hub.complete(key, files)
    except VeilsumError as error:
        LOG.warning("study %s, which failed before, cannot be completed: %s", study.name, error)
        return False
    except Exception as error:
        LOG.error("study %s, which failed before, fails again", study.name, exc_info=error)
        return False
    LOG.info("study %s is completed from its releases", study.name, extra=about("completed", study=study.name, digest=key))
    return True
