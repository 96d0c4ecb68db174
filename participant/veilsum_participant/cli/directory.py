"""``veilsum participant directory``: read out the words of the federation's directory, and confirm it by those that another
site read out."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilsum_node.errors import Misuse
from veilsum_node.identity import Role, load_credentials
from veilsum_node.process.console import ConfigOption, JsonOption, moment, print_fields, print_line

if TYPE_CHECKING:
    from veilsum_node.identity import Credentials
    from veilsum_node.identity.directory import Directory
    from veilsum_participant.settings.config import ParticipantConfig

CONFIG = Path("participant.toml")
FileArgument = Annotated[
    Path | None, typer.Argument(help="The directory; by default the one that policy.directory names.", metavar="FILE")
]

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def directory() -> None:
    """The federation's directory: one fingerprint to confirm, in place of one for each member."""


@app.command()
def show(file: FileArgument = None, config: ConfigOption = CONFIG, as_json: JsonOption = False) -> None:
    """Verify a directory, say what it changes, and print its words, to be read to the other sites."""
    from veilsum_participant.settings.directory import check_later, confirmed_directory

    settings, credentials, given = _given(file, config)
    old = confirmed_directory(settings, credentials)
    check_later(old, given)
    words = given.words
    fields = {
        **_fields(given, old, as_json=as_json),
        "words": words if as_json else "\n".join(_row(words, start) for start in range(0, len(words), 6)),
    }
    print_fields(fields, title="Directory", as_json=as_json)
    if not as_json:
        print_line(
            "This site's own key is in it. Have another site read its words to you, and give them to `veilsum participant"
            " directory confirm`."
        )


@app.command()
def confirm(
    file: FileArgument = None,
    config: ConfigOption = CONFIG,
    words: Annotated[
        str | None, typer.Option("--words", help="The 24 words, as another site read them out; asked for if left out.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Confirm a directory by the words that another site read out; it holds from the participant's next start."""
    from veilsum_participant.settings.directory import confirm as take
    from veilsum_participant.settings.directory import confirmed_directory, confirmed_path

    settings, credentials, given = _given(file, config)
    old = confirmed_directory(settings, credentials)
    if words is None:
        if not sys.stdin.isatty():
            raise Misuse("The words are missing.", 'Give them as another site read them out: --words "...".')
        print_fields(_fields(given, old, as_json=False), title="Directory", as_json=False)
        words = typer.prompt("The 24 words, as another site read them out", err=True)
    take(settings, credentials, given, words)
    fields = {**_fields(given, old, as_json=as_json), "confirmed": str(confirmed_path(settings))}
    print_fields(fields, title="Confirmed", as_json=as_json)
    if not as_json and settings.policy.directory is None:
        print_line('Name it in the configuration: directory = "..." under [policy], in place of [policy.trusted].')


def _given(file: Path | None, config: Path) -> tuple[ParticipantConfig, Credentials, Directory]:
    from veilsum_participant.settings.config import load_participant_config
    from veilsum_participant.settings.directory import given_directory

    settings, now = load_participant_config(config), int(time.time())
    path = file or settings.policy.directory
    if path is None:
        raise Misuse("It is not said which directory.", "Name its file, or policy.directory in the configuration.")
    credentials = load_credentials(settings.identity, now, Role.PARTICIPANT)
    return settings, credentials, given_directory(path, credentials, now)


def _fields(given: Directory, old: Directory | None, *, as_json: bool) -> dict[str, Any]:
    from veilsum_node.identity.directory import changes

    what = changes(old, given)
    return {
        "version": given.version,
        "valid": f"{moment(given.issued)} to {moment(given.expires)}",
        "confirmed before": None if old is None else f"version {old.version}",
        "participants": len(given.keys(Role.PARTICIPANT)),
        "analysts": len(given.keys(Role.ANALYST)),
        "changes": what if as_json else "\n".join(what) or "none",
        "root": given.root.hex(),
    }


def _row(words: list[str], start: int) -> str:
    return "  ".join(f"{start + number:>2} {word:<8}" for number, word in enumerate(words[start : start + 6], 1)).rstrip()
