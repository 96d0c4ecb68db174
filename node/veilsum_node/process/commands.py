"""The frame of a command line whose nouns are modules: imported when asked for; :mod:`veilsum_node.process.ending` has its
exit status.
"""

import importlib
import io
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from veilsum_node.process.ending import end_after
from veilsum_node.process.imports import networks_may_be_missing
from veilsum_node.process.memory import loading

PROGRAM = "veilsum"

OTHERS_WRITE = 0o022
"""No file or directory that a command makes can be changed by others, whatever umask it was started with."""


@dataclass(frozen=True)
class Noun:
    """A noun of the command line.

    Attributes:
        module: has the ``app``; imported when the noun is used, so that ``--help`` loads neither torch nor TenSEAL.
        help: one line, which stands beside it in the overview.
    """

    module: str
    help: str


def _show_version(wanted: bool) -> None:
    if wanted:
        from veilsum_node.process.software import installed_version  # what --help does without

        typer.echo(f"{PROGRAM} {installed_version()}")
        raise typer.Exit


def command_line(about: str, nouns: Mapping[str, Noun], shared: object = None) -> typer.Typer:
    """A command line of ``nouns``, in their order; ``about`` heads its help, ``shared`` is in every command's context."""

    class LazyGroup(TyperGroup):
        """A group whose commands are imported when they run; the overview needs names and help lines only."""

        _overview = False

        def list_commands(self, ctx: Any) -> list[str]:
            return list(nouns)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            noun = nouns.get(cmd_name)
            if noun is None:
                return None
            if self._overview:
                return TyperCommand(cmd_name, help=noun.help)
            with loading():
                return typer.main.get_command(importlib.import_module(noun.module).app)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            self.commands = dict.fromkeys(nouns, self)  # whose nearest an unknown one's error names
            return super().resolve_command(ctx, args)

        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except typer.BadParameter as error:
                from veilsum_node.config import plain_words  # what --help does without

                error.message = plain_words(error.message)
                raise

        def format_help(self, ctx: Any, formatter: Any) -> None:
            self._overview = True
            super().format_help(ctx, formatter)

        def shell_complete(self, ctx: Any, incomplete: str) -> Any:
            self._overview = True  # a shell's Tab waits: nouns are named without importing them
            return super().shell_complete(ctx, incomplete)

    app = typer.Typer(cls=LazyGroup, no_args_is_help=True)

    @app.callback(help=about)
    def root(
        ctx: typer.Context,
        shown: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
        ] = False,
    ) -> None:
        """Options that stand before the noun."""
        ctx.obj = shared

    return app


def run(app: typer.Typer, arguments: list[str] | None = None) -> NoReturn:
    """Run a command line and exit; typed errors become a message, advice and status 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows "?" for what it lacks
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it would search every installed package for them
    os.umask(os.umask(0o077) | OTHERS_WRITE)
    end_after(lambda: _answer(app, arguments), as_json=as_json)


def _answer(app: typer.Typer, arguments: list[str]) -> None:
    """Run the command and write out what it printed: what is left to the interpreter's end fails without a word of ours."""
    try:
        with networks_may_be_missing():
            typer.main.get_command(app).main(args=arguments, prog_name=PROGRAM)
    except SystemExit:
        sys.stdout.flush()
        raise
