"""The ``veilsum`` command.

Each noun is a module with an ``app``, imported when it is asked for: ``veilsum --help`` loads neither torch nor TenSEAL.
Exit status: 0 done, 1 the answer is no (a check, a verification or a study failed), 2 wrong usage or a typed error, 70 a
fault of veilsum itself.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from veilsum_deploy.cli.output import report_crash, report_error
from veilsum_privacy.errors import StateError, VeilsumError

COMMANDS = {
    "federation": "The certificate authority: set up, sign, list.",
    "coordinator": "Set up and run a coordinator.",
    "participant": "Set up, check and run a participant.",
    "analyst": "Set up an analyst.",
    "study": "Submit studies, watch them, fetch their results.",
    "ledger": "What was spent: show it, verify it, set budgets.",
    "demo": "Run a federation on this machine: a coordinator and four hospitals as real processes.",
    "simulate": "Try a study on simulated sites in one process.",
}
"""Modules of this package, in the order of the help, and what stands beside them there."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ROOM = "Make room where the output or the state goes, then run it again."


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they run; the overview needs names and help lines only."""

    _overview = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if self._overview or ctx.resilient_parsing:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name])
        module = importlib.import_module(f"{__name__}.{cmd_name}")
        return typer.main.get_command(module.app)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._overview = True
        super().format_help(ctx, formatter)


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, add_completion=False)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"veilsum {version('veilsum')}")
        raise typer.Exit


@app.callback()
def veilsum(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Secure aggregation: joint statistics and models, and nobody sees a record or one site's numbers."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; typed errors become a message, advice and status 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows "?" for what it lacks
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC would write its own lines between ours
    try:
        typer.main.get_command(app).main(args=arguments, prog_name="veilsum")
    except OSError as error:
        if error.errno not in _FULL:
            sys.exit(report_crash(error, as_json=as_json))
        sys.exit(report_error(StateError(f"Nothing more can be written ({error.strerror}).", _ROOM), as_json=as_json))
    except VeilsumError as error:
        sys.exit(report_error(error, as_json=as_json))
    except Exception as error:  # noqa: BLE001  the last line of defence: no trace with a record's value on a screen
        sys.exit(report_crash(error, as_json=as_json))
    sys.exit(0)
