"""The commands that start a party's console and make one-time links to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilsum_node.config import plain_words
from veilsum_node.errors import ConfigurationError, Misuse
from veilsum_node.identity import Role
from veilsum_node.process.console import ConfigOption, print_line
from veilsum_node.process.memory import loading
from veilsum_node.process.software import install_extra

if TYPE_CHECKING:
    from veilsum_node.web.people import Links, Person
    from veilsum_node.web.settings import ConsoleSettings

SETTINGS = Path("console.toml")

SettingsOption = Annotated[
    Path | None, typer.Option("--settings", help="The console's own settings.", show_default=str(SETTINGS))
]
WhoOption = Annotated[
    list[str] | None,
    typer.Option(
        "--as",
        help="Person to make a one-time link for: NAME=ROLE, where ROLE is reader, officer or operator; may be repeated.",
    ),
]


def add_console(
    app: typer.Typer,
    role: Role,
    run: Callable[[Path, ConsoleSettings, list[Person], bool], None],
    links: Callable[[Path, ConsoleSettings], Links],
) -> None:
    """Add the commands to a party's own.

    Args:
        role: of the party; also names its configuration.
        run: serves the console; the last argument says whether records may be in reach.
        links: the links of the console.
    """
    default = Path(f"{role}.toml")

    @app.command()
    def console(
        config: ConfigOption = default,
        settings: SettingsOption = None,
        who: WhoOption = None,
        listen: Annotated[
            str | None, typer.Option("--listen", help="host:port of loopback, or unix:/path; in place of the settings'.")
        ] = None,
        in_reach: Annotated[
            bool, typer.Option("--records-in-reach", help="Start although this user may read a site's records: for trials.")
        ] = False,
    ) -> None:
        """Serve pages for people on loopback or a Unix socket until SIGINT or SIGTERM. It needs the extra console."""
        with loading(serves=True):
            from veilsum_node.process.hardening import harden

            found = _settings(config, settings, listen)
            try:
                import starlette  # noqa: F401
                import uvicorn  # noqa: F401
            except ImportError as error:
                raise ConfigurationError(f"The console needs the package {error.name}.", install_extra("console")) from error
        harden()
        run(config, found, [_person(text) for text in who or ()], in_reach)

    @app.command("console-link")
    def console_link(
        who: Annotated[
            str,
            typer.Option("--as", help="Person that the link is for: NAME=ROLE, where ROLE is reader, officer or operator."),
        ],
        config: ConfigOption = default,
        settings: SettingsOption = None,
    ) -> None:
        """Make a one-time link to the running console for somebody; it counts for a quarter of an hour. Run it as its user."""
        found = _settings(config, settings, None)
        place = links(config, found).add(_person(who))
        print_line(f"{found.url or 'http://' + found.listen}/enter?token={place}")


def _settings(config: Path, settings: Path | None, listen: str | None) -> ConsoleSettings:
    from pydantic import ValidationError

    from veilsum_node.web.settings import ConsoleSettings, load_console

    found = load_console(settings or config.with_name(SETTINGS.name), demanded=settings is not None)
    if listen is None:
        return found
    try:
        return ConsoleSettings(**{**dict(found), "listen": listen})
    except ValidationError as error:
        raise Misuse(f"--listen: {plain_words(error.errors()[0]['msg'])}.") from error


def _person(text: str) -> Person:
    from veilsum_node.web.people import PersonRole, person

    name, equals, role = text.rpartition("=")
    if not equals or role not in set(PersonRole):
        raise Misuse(f"{text!r} is not NAME=ROLE.", f"ROLE is one of {', '.join(PersonRole)}.")
    return person(name, [PersonRole(role)])
