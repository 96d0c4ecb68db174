"""A page of every command, of what `--help` prints of it."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from veilsum_deploy.cli import app


def markdown() -> str:
    """Sections of the page."""
    return "\n\n".join(_describe(get_command(app), ["veilsum"], None))


def _describe(command: Any, words: list[str], above: Any) -> Iterator[str]:
    """A command and those below it."""
    context = command.make_context(words[-1], [], parent=above, resilient_parsing=True)
    below = command.list_commands(context) if hasattr(command, "list_commands") else []
    yield f"{'#' * min(len(words) + 1, 4)} {' '.join(words)}"
    yield "\n\n".join(_plain(text) for text in (command.help or "").split("\n\n"))
    if not below:
        yield f"```text\n{' '.join(words)} {' '.join(command.collect_usage_pieces(context))}\n```"
    records = [record for parameter in command.params if (record := parameter.get_help_record(context))]
    yield "\n".join(f"- `{name}`: {_plain(text)}" for name, text in records)
    for name in below:
        yield from _describe(command.get_command(context, name), [*words, name], context)


def _plain(text: str) -> str:
    """Text in which Markdown sees no markup."""
    return " ".join("".join(f"\\{letter}" if letter in r"\`*_[]<>#|" else letter for letter in text).split())
