"""The ``veilsum`` command of the coordinator's own distribution: a coordinator, and its federation's authority.

The whole platform's command (``veilsum_deploy.cli``) has the same nouns beside those of the other parties.
"""

from typing import NoReturn

from veilsum_node.process.commands import Noun, command_line, run

NOUNS = {
    "federation": Noun("veilsum_deploy.coordinator.federation", "The certificate authority: set up, sign, list."),
    "coordinator": Noun("veilsum_deploy.coordinator.coordinator", "Set up and run a coordinator."),
}

app = command_line("A federation's coordinator, and its certificate authority.", NOUNS)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    run(app, arguments)
