"""The ``veilsum login`` command: a person's certificate of some hours."""

import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from veilsum.access import SETTINGS, resolve_login
from veilsum.login.person import log_in
from veilsum_node.identity import Role
from veilsum_node.process.console import JsonOption, moment, print_fields

app = typer.Typer(add_completion=False)


@app.command()
def login(
    settings: Annotated[Path, typer.Option("--settings", help="File with a table [login].")] = SETTINGS,
    operator: Annotated[bool, typer.Option("--operator", help="Ask for an operator's certificate, not an analyst's.")] = False,
    browser: Annotated[bool, typer.Option("--browser", help="Open the address in this machine's browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Log in with the organisation's identity provider for a certificate of some hours."""

    def visit(url: str) -> None:
        typer.echo(f"Open this address in a browser on this machine to log in:\n{url}", err=True)
        if browser:
            webbrowser.open(url)

    found, identity = resolve_login(settings)
    logged_in = log_in(found, identity, Role.OPERATOR if operator else Role.ANALYST, visit, lambda: int(time.time()))
    fields = {
        "name": logged_in.name,
        "role": logged_in.role.value,
        "fingerprint": logged_in.fingerprint,
        "expires": moment(logged_in.not_after),
        "identity": str(identity),
    }
    print_fields(fields, title="Logged in", as_json=as_json)
