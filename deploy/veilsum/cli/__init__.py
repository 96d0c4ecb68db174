"""The ``veilsum`` command of the analyst's own distribution: studies, from a study.toml to a verified result.

The whole platform's command (``veilsum_deploy.cli``) has the same nouns beside those of the other parties.
"""

from typing import NoReturn

from veilsum_node.process.commands import Noun, command_line, run

NOUNS = {
    "analyst": Noun("veilsum.cli.analyst", "Set up an analyst."),
    "login": Noun("veilsum.cli.login", "Log in with the organisation's identity provider for a certificate of some hours."),
    "study": Noun("veilsum.cli.study", "Submit studies, watch them, fetch their results."),
}

app = command_line("Joint statistics and models without anybody seeing a record: the analyst's side.", NOUNS)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    run(app, arguments)
