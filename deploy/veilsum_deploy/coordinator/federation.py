"""The ``veilsum federation`` commands: the authority that says who is a member, and in which role."""

from pathlib import Path
from typing import Annotated

import typer

from veilsum_node.identity import DEFAULT_DAYS, Authority, IssuedRecord, Role, verify_certificate
from veilsum_node.identity.directory import parse_directory
from veilsum_node.identity.files import read_file, read_private, replace_file
from veilsum_node.identity.kit import TRIAL_HOSTS, make_kit
from veilsum_node.identity.provision import install
from veilsum_node.identity.record import Released
from veilsum_node.identity.releases import left_out, sign_directory
from veilsum_node.process.console import JsonOption, moment, print_fields, print_line, print_rows
from veilsum_node.process.steady_clock import now

app = typer.Typer(no_args_is_help=True, add_completion=False)

AuthorityDirectory = Annotated[Path, typer.Argument(help="The authority's directory.")]
PassphraseFile = Annotated[
    Path | None, typer.Option(help="File (mode 600) whose first line is the passphrase of the authority's key.")
]


@app.callback()
def federation() -> None:
    """The certificate authority: set up, sign, list, publish the directory."""


@app.command()
def init(
    directory: AuthorityDirectory,
    name: Annotated[str, typer.Option("--name", help="The federation's name.")],
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Make the authority of a new federation."""
    authority = Authority.create(directory, name, now, passphrase=_passphrase(passphrase_file))
    fields = {"federation": name, "id": authority.federation_id, "authority": str(directory)}
    print_fields(fields, title="New federation", as_json=as_json)


@app.command()
def sign(
    csr: Annotated[Path, typer.Argument(help="The request.csr that a party sent.")],
    role: Annotated[Role, typer.Option("--role", help="The role to certify.")],
    name: Annotated[str, typer.Option("--name", help="The name to certify; the request must ask for it.")],
    authority: Annotated[Path, typer.Option("--authority", help="The authority's directory.")] = Path("authority"),
    host: Annotated[list[str] | None, typer.Option("--host", help="Where a coordinator is reached; repeatable.")] = None,
    days: Annotated[int, typer.Option("--days", help="How long the certificate is valid.")] = DEFAULT_DAYS,
    out: Annotated[
        Path | None, typer.Option("--out", help="Directory for certificate.pem and authority.pem; default: the request's.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Give the name to a different key or role than before.")] = False,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Sign a party's request."""
    opened = Authority.load(authority, now, passphrase=_passphrase(passphrase_file))
    request = read_file(csr, "request")
    certificate = opened.sign(request, role=role, name=name, hosts=host or (), days=days, replace=replace)
    target = out if out is not None else csr.parent
    install(target, certificate, opened.certificate_pem)
    identity = verify_certificate(certificate, opened.certificate, now(), role)
    fields = {
        "name": name,
        "role": role.value,
        "fingerprint": identity.fingerprint,
        "expires": moment(identity.not_after),
        "directory": str(target),
    }
    print_fields(fields, title="Signed", as_json=as_json)


@app.command("list")
def list_issued(directory: AuthorityDirectory = Path("authority"), as_json: JsonOption = False) -> None:
    """List every certificate that the authority signed."""
    at = now()
    rows = [
        {
            "name": entry.name,
            "role": entry.role.value,
            "issued": moment(entry.issued),
            "expires": moment(entry.expires),
            "valid": at <= entry.expires,
            "fingerprint": entry.fingerprint,
            "login": entry.subject,
        }
        for entry in IssuedRecord(directory).entries()
    ]
    print_rows(rows, title="Issued certificates", as_json=as_json, empty="No certificate was signed yet.")


@app.command()
def release(
    name: Annotated[str, typer.Argument(help="The name.")],
    authority: Annotated[Path, typer.Option("--authority", help="The authority's directory.")] = Path("authority"),
    to: Annotated[
        str, typer.Option("--to", help='The only login that may take it: "ISSUER SUBJECT"; anybody may without it.')
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Let a name go to somebody else, once its last certificate has ended: another login, or another key that you sign."""
    made = IssuedRecord(authority).release(name, now(), to)
    fields = {"name": name, "released": moment(made.at), "was": made.subject or None, "may be taken by": to or "anybody"}
    print_fields(fields, title="Released", as_json=as_json)
    if not as_json:
        print_line("Sites accept analysts by name: tell every site's operator whose it is now.")


@app.command()
def releases(directory: AuthorityDirectory = Path("authority"), as_json: JsonOption = False) -> None:
    """List every name that was released, when, whose it was and who may take it."""
    rows = [
        {"name": entry.released, "at": moment(entry.at), "was": entry.subject, "to": entry.to}
        for entry in IssuedRecord(directory).history()
        if isinstance(entry, Released)
    ]
    print_rows(rows, title="Released names", as_json=as_json, empty="No name was released yet.")


@app.command()
def directory(
    authority: AuthorityDirectory = Path("authority"),
    out: Annotated[Path, typer.Option("--out", help="Where the directory goes, for all sites.")] = Path("directory.json"),
    days: Annotated[int, typer.Option("--days", help="How long the directory is valid.")] = DEFAULT_DAYS,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", help="Leave a party out from here on, whose certificate is still valid; repeatable."),
    ] = None,
    again: Annotated[
        list[str] | None, typer.Option("--again", help="Take a party in that the last directory left out; repeatable.")
    ] = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Sign a directory of all participants and analysts, which sites confirm by one fingerprint instead of one a member."""
    opened = Authority.load(authority, now, passphrase=_passphrase(passphrase_file))
    signed = sign_directory(opened, days=days, without=without or (), again=again or ())
    made = parse_directory(signed, opened.certificate)
    replace_file(out, made.data)
    fields = {
        "directory": str(out),
        "version": made.version,
        "expires": moment(made.expires),
        "participants": sorted(made.keys(Role.PARTICIPANT)),
        "analysts": sorted(made.keys(Role.ANALYST)),
        "left out": left_out(opened),
        "root": made.root.hex(),
    }
    print_fields(fields, title="Directory", as_json=as_json)
    if not as_json:
        print_line(
            "Send it to every site, by any channel. Sites compare its words with each other (`veilsum participant directory"
            " show`), not with you: their agreement keeps the authority out of sums."
        )


@app.command()
def kit(
    directory: Annotated[Path, typer.Argument(help="A new directory for the whole federation.")],
    participants: Annotated[str, typer.Option("--participants", help="Their names, separated by commas.")],
    host: Annotated[list[str] | None, typer.Option("--host", help="Where the coordinator is reached; repeatable.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a federation for trying out, with every private key on this machine."""
    names = [name.strip() for name in participants.split(",")]
    made = make_kit(directory, names, host or TRIAL_HOSTS, clock=now)
    rows = [{"name": party.name, "role": party.role.value, "directory": str(party.directory)} for party in made.parties]
    print_rows(rows, title=f"Federation {made.federation_id[:16]}", as_json=as_json)
    if not as_json:
        print_line("For trying out only: in a real federation every site makes its own key with `veilsum participant init`.")


@app.command("serve-logins")
def serve_logins(
    config: Annotated[Path, typer.Option("--config", help="The service's configuration.")] = Path("logins.toml"),
) -> None:
    """Certify people for some hours who log in with an identity provider, until SIGINT or SIGTERM."""
    from veilsum_deploy.login import issuer  # reads settings of the listener, which the other commands do without
    from veilsum_node.process.hardening import harden
    from veilsum_node.telemetry.log_floods import start_bounded_logging

    harden()
    settings = issuer.load_login_service(config)
    start_bounded_logging(settings.log)
    issuer.serve_logins(settings, now)


def _passphrase(path: Path | None) -> bytes | None:
    return None if path is None else read_private(path, "passphrase file").splitlines()[0]
