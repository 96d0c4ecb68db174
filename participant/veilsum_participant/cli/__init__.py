"""The ``veilsum`` command of the participant's own distribution: what a site needs, and nothing of a coordinator.

The whole platform's command (``veilsum_deploy.cli``) has the same nouns and adds what needs the coordinator's code.
"""

from typing import NoReturn

from veilsum_node.process.commands import Noun, command_line, run

NOUNS = {
    "participant": Noun("veilsum_participant.cli.participant", "Set up, check and run a participant."),
    "ledger": Noun("veilsum_participant.cli.ledger", "What was spent: show it, verify it, set budgets."),
    "schema": Noun("veilsum_participant.cli.schema", "Draft a schema of a data dictionary or of public records."),
}

app = command_line("A site of a federation: runs its participant, audits its ledger.", NOUNS)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    run(app, arguments)
