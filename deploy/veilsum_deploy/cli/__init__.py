"""The ``veilsum`` command, with every role; see :mod:`veilsum_node.process.commands` for its exit status.

A site's own commands are the participant's (:mod:`veilsum_participant.cli`), with what needs the coordinator's code added.
"""

from typing import NoReturn

import veilsum.cli
import veilsum_deploy.coordinator
from veilsum_deploy.cli.additions import ADDITIONS
from veilsum_node.process.commands import Noun, command_line, run

NOUNS = {
    **veilsum_deploy.coordinator.NOUNS,
    "participant": Noun("veilsum_participant.cli.participant", "Set up, check and run a participant."),
    **veilsum.cli.NOUNS,
    "ledger": Noun("veilsum_participant.cli.ledger", "What was spent: show it, verify it, set budgets."),
    "schema": Noun("veilsum_participant.cli.schema", "Draft a schema of a data dictionary or of public records."),
    "demo": Noun(
        "veilsum_deploy.cli.demo", "Run a federation on this machine: a coordinator and four hospitals as real processes."
    ),
    "images": Noun("veilsum_deploy.cli.images", "Turn folders of images into records."),
    "simulate": Noun("veilsum_deploy.cli.simulate", "Try a study on simulated sites in one process."),
}

app = command_line(
    "Secure aggregation: joint statistics and models without anybody seeing a record or one site's numbers.", NOUNS, ADDITIONS
)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    run(app, arguments)
