"""The commands that both long-running parties have: health, effective configuration, backup and restore."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilsum_node.errors import StateError
from veilsum_node.identity import Role
from veilsum_node.process.console import ConfigOption, JsonOption, moment, print_fields, print_json, print_line, print_rows

if TYPE_CHECKING:
    from veilsum_node.overrides import Loaded
    from veilsum_node.process.check import Check
    from veilsum_privacy.backup.backup import BackupOwner, Manifest

_BARE = re.compile("[A-Za-z0-9_-]+")

ArchiveArgument = Annotated[Path, typer.Argument(help="The backup: one file.", metavar="FILE")]
WithIdentityOption = Annotated[
    bool, typer.Option("--with-identity", help="Include the private key and certificates: keep such a backup like the key.")
]
RestoreIdentityOption = Annotated[
    bool, typer.Option("--with-identity", help="Write the identity that is in the backup as well, where there is none.")
]
ReplaceOption = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
MoveOption = Annotated[
    bool,
    typer.Option(
        "--move",
        help="A participant's last backup here: the stopped site moves, and its state here releases nothing any more.",
    ),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace even a newer, different or unreadable ledger; the old file is kept.")
]


def add_operations(
    app: typer.Typer,
    role: Role,
    load: Callable[[Path], Any],
    read: Callable[[Path], Loaded[Any]],
    owner: Callable[[Any], BackupOwner],
    helps: Mapping[str, str],
) -> None:
    """Add the commands to a party's own.

    Args:
        role: of the party; also names its configuration.
        load: reads its configuration.
        read: the same with where each value came from.
        owner: what a backup of the party that has such a configuration is of.
        helps: help texts of ``health``, ``backup`` and ``restore``.
    """
    default = Path(f"{role}.toml")

    @app.command(help=helps["health"])
    def health(config: ConfigOption = default, as_json: JsonOption = False) -> None:
        from veilsum_node.telemetry.health import ask_ready, show_health

        raise typer.Exit(show_health(ask_ready(load(config).metrics), as_json=as_json))

    @app.command()
    def config(path: ConfigOption = default, as_json: JsonOption = False) -> None:
        """Show the effective configuration: file, environment and defaults, each value with its source; secrets hidden."""
        _show_configuration(read(path), path, as_json=as_json)

    @app.command(help=helps["backup"])
    def backup(
        file: ArchiveArgument,
        config: ConfigOption = default,
        with_identity: WithIdentityOption = False,
        force: ReplaceOption = False,
        move: MoveOption = False,
        as_json: JsonOption = False,
    ) -> None:
        _backup(owner(load(config)), file, with_identity=with_identity, force=force, move=move, as_json=as_json)

    @app.command(help=helps["restore"])
    def restore(
        file: ArchiveArgument,
        config: ConfigOption = default,
        with_identity: RestoreIdentityOption = False,
        force: ForceOption = False,
        as_json: JsonOption = False,
    ) -> None:
        _restore(owner(load(config)), file, with_identity=with_identity, force=force, as_json=as_json)


def show_checks(checks: Sequence[Check], title: str, *, as_json: bool) -> int:
    """Show what checks found; returns the command's status, 1 if one failed."""
    from veilsum_node.process.check import CheckOutcome

    ok = all(item.status is not CheckOutcome.FAILED for item in checks)
    if as_json:
        print_json({"ok": ok, "checks": [item.to_json() for item in checks]})
    else:
        rows = [
            {"status": item.status.value, "check": item.check, "found": item.detail, "what to do": item.advice}
            for item in checks
        ]
        print_rows(rows, title=title, as_json=False)
    return 0 if ok else 1


def _backup(party: BackupOwner, file: Path, *, with_identity: bool, force: bool, move: bool, as_json: bool) -> None:
    """Make a backup and say what is in it."""
    from veilsum_node.process.software import installed_version
    from veilsum_privacy.backup.backup import back_up

    software = f"veilsum {installed_version()}"
    manifest = back_up(party, file, software=software, with_identity=with_identity, force=force, last=move)
    fields = {"backup": str(file), **_shown(manifest), "files": len(manifest.files), "identity": manifest.identity}
    if move:
        fields["moved"] = manifest.last
    print_fields(fields, title="Backup, verified", as_json=as_json)
    if not as_json:
        print_line(
            "It holds the private key: keep it as you keep the key."
            if manifest.identity
            else f"The identity is not in it: keep {party.identity} apart, or add --with-identity."
        )
        if move:
            print_line(
                "This host is left: its state releases nothing any more. Put the backup back on the other one this week."
            )


def _restore(party: BackupOwner, file: Path, *, with_identity: bool, force: bool, as_json: bool) -> None:
    """Put a backup back and say what that means."""
    from veilsum_privacy.backup.restore import restore

    done = restore(file, party, with_identity=with_identity, force=force)
    fields: dict[str, Any] = {
        "restored": str(party.state),
        **_shown(done.manifest),
        "entries_forgotten": done.behind,
        "replaced_file": None if done.kept is None else str(done.kept),
        "identity_written": done.identity,
    }
    if party.role is Role.PARTICIPANT:
        fields["to_be_completed"] = done.marked
    if party.role is Role.COORDINATOR:
        fields["results_written"] = done.results
    print_fields(fields, title="Restored", as_json=as_json)
    if not as_json:
        marked = _MARKED if done.marked else ()
        for line in (*marked, *_PARTICIPANT) if party.role is Role.PARTICIPANT else _COORDINATOR:
            print_line(line)


_MARKED = (
    "Nothing is enrolled in or released (ledger-not-verified) until one of these two is done, before the start or after it:",
    "`veilsum ledger recover --from LEDGER` with another site's fresh export: its receipts show what this site paid since;",
    "`veilsum ledger recover --trust-coordinator --reason TEXT --operator NAME`: the coordinator's mirror is taken for all.",
)
_PARTICIPANT = (
    "What this site consented to since the backup is not forgotten: when the participant starts, it hears from the"
    " coordinator's mirror which receipts it signed, and charges every one that is missing before it answers anything.",
    "What does not come back: budgets set since (set them again), and keys of studies enrolled in since (submit these again).",
)
_COORDINATOR = (
    "Studies that ran at the time of the backup have failed; submit them again. Releases and results since are not in it.",
    "The mirror ends where the backup ends. What participants paid since stands in their ledgers; `veilsum ledger verify"
    " --against` names the first entry that the mirror lacks.",
)


def _shown(manifest: Manifest) -> dict[str, Any]:
    return {
        "party": manifest.party,
        "role": manifest.role,
        "made": moment(manifest.made),
        "entries": manifest.entries,
        "head": manifest.head,
        "sha256": manifest.files["state.db"],
    }


def require_file(place: str) -> Path:
    """The state's file, for commands that can only copy a file.

    Raises:
        StateError: it lies in a server's database.
    """
    if "://" in place:
        raise StateError(
            "Journal and mirror are in PostgreSQL, which has its own backups.",
            "Use pg_dump and pg_restore as docs/upgrading.md shows, and copy the results directory as well.",
        )
    return Path(place)


def _show_configuration(loaded: Loaded[Any], path: Path, *, as_json: bool) -> None:
    """Show every key that holds, with where it came from; secrets are hidden."""
    from veilsum_node.overrides import effective

    rows = effective(loaded)
    if as_json:
        print_json([{"key": ".".join(key), "value": _plain(value), "source": source} for key, value, source in rows])
        return
    print_line(f"# {path} with the environment; what holds. Paths are relative to the file's directory.")
    table: tuple[str, ...] = ()
    for key, value, source in sorted(rows, key=lambda row: len(row[0]) > 1):
        if key[:-1] != table:
            table = key[:-1]
            print_line(f"\n[{'.'.join(_quoted(table))}]")
        unset = value is None
        line = f"{'# ' if unset else ''}{_quoted(key[-1:])[0]} = {'not set' if unset else _toml(value)}"
        print_line(line if source == "file" else f"{line:<40}  # {source}")


def _quoted(names: Sequence[str]) -> list[str]:
    return [name if _BARE.fullmatch(name) else json.dumps(name) for name in names]


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _toml(value: Any) -> str:
    """A value as TOML writes it; JSON's strings, numbers and booleans are TOML's."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return json.dumps(_plain(value)) if value != {} else "{}"
