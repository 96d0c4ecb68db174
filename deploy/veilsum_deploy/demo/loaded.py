"""What the demo's processes are forked with: all that a coordinator and a participant load, now or in their first study."""

import pyarrow

from veilsum_node.process.memory import loading

with loading(serves=True):
    import veilsum_coordinator.migrations
    import veilsum_coordinator.results.reproduction
    import veilsum_coordinator.service.server  # noqa: F401
    import veilsum_deploy.coordinator.coordinator  # noqa: F401
    import veilsum_participant.cli.participant
    import veilsum_participant.front.answering
    import veilsum_participant.migrations
    import veilsum_participant.session.client  # noqa: F401

    pyarrow.array([])  # which loads pandas where that is installed
