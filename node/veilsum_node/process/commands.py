"""The frame of a command line whose nouns are modules: imported when asked for, errors as messages, one exit status each.

Exit status: 0 done, 1 the answer is negative (a check, a verification or a study failed), 2 wrong usage or a typed error, 70 a
fault of veilsum itself.
"""

import contextlib
import errno
import importlib
import io
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from veilsum_node.errors import StateError, VeilsumError
from veilsum_node.process.console import report_crash, report_error
from veilsum_node.process.imports import loading, networks_may_be_missing

PROGRAM = "veilsum"

OTHERS_WRITE = 0o022
"""No file or directory that a command makes can be changed by others, whatever umask it was started with."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ROOM = "Free space where the output or the state is written, then run it again."


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
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC would write its own lines between ours
    os.umask(os.umask(0o077) | OTHERS_WRITE)
    try:
        _answer(app, arguments)
    except BrokenPipeError:  # whoever read the output has seen enough
        _drop_output()
        sys.exit(1)
    except OSError as error:
        if error.errno not in _FULL:
            sys.exit(report_crash(error, as_json=as_json))
        _drop_output()
        sys.exit(report_error(StateError(f"Output or state cannot be written ({error.strerror}).", _ROOM), as_json=as_json))
    except VeilsumError as error:
        sys.exit(report_error(error, as_json=as_json))
    except Exception as error:  # noqa: BLE001  the last line of defence: no trace with a record's value on a screen
        sys.exit(report_crash(error, as_json=as_json))
    sys.exit(0)


def _answer(app: typer.Typer, arguments: list[str]) -> None:
    """Run the command and write out what it printed: what is left to the interpreter's end fails without a word of ours."""
    try:
        with networks_may_be_missing():
            typer.main.get_command(app).main(args=arguments, prog_name=PROGRAM)
    except SystemExit:
        sys.stdout.flush()
        raise


def _drop_output() -> None:
    """Let what could not be written go nowhere, or the interpreter would try again at its end."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
