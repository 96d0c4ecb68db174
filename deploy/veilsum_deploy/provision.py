"""Makes what a federation for trying needs, once: ``python -m veilsum_deploy.provision --into NAME=DIRECTORY ...``.

Into a directory for each party: identity, metrics certificate and token, and for a participant its demo records and the pins
of its peers; for the database and Grafana a password each. Every private key is made in one place: for trying out only.

Certificates of the metrics endpoints of a federation for trying: an authority of their own, and one for each service.

Beside the federation's authority, not under it: who may scrape is another question than who is a member.
"""

import ipaddress
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from veilsum_deploy.demo.hospitals import Hospitals, packaged_hospitals
from veilsum_node.addresses import bare_host
from veilsum_node.errors import Misuse, StateError
from veilsum_node.identity import load_credentials
from veilsum_node.identity.authority import certificate_builder
from veilsum_node.identity.kit import TRIAL_HOSTS, Kit, make_kit
from veilsum_node.process.commands import run
from veilsum_node.process.console import print_line

DAYS = 825

DONE = "provisioned"
"""File in ``authority`` that is written last."""

DATABASE_USER = "veilsum"
OTHERS = ("authority", "coordinator", "analyst", "database", "prometheus", "grafana")
"""What has a directory beside the sites."""

_LOOPBACK = ("localhost", "127.0.0.1")
_OPEN, _PRIVATE = 0o444, 0o400


@dataclass(frozen=True)
class Owner:
    """The user that a party's files shall belong to: the one that its container runs as."""

    uid: int
    gid: int


def provision(places: Mapping[str, Path], hosts: Sequence[str], owner: Owner | None, clock: Callable[[], int]) -> bool:
    """Make everything, unless it was made before; an attempt that was cut off is made anew.

    Args:
        places: directories by name: :data:`OTHERS`, and one for each demo site; what else lies in them is removed.
        hosts: how the coordinator will be dialled.
        owner: of the parties' files, where this runs as root; None leaves them to our own user.
        clock: Unix seconds.

    Returns:
        Whether anything was made.

    Raises:
        Misuse: a directory is missing, or too many are given.
        StateError: a file cannot be written.
    """
    hospitals = packaged_hospitals()
    wanted = {*OTHERS, *hospitals.sites}
    if wrong := sorted(wanted.symmetric_difference(places)):
        raise Misuse(f"The directories are not as needed: {', '.join(wrong)}.", f"Needed: {', '.join(sorted(wanted))}.")
    try:
        return _provision(places, hospitals, hosts, owner, clock)
    except OSError as error:
        raise StateError(f"{error.filename} cannot be written ({error.strerror}).", "Check its owner.") from error


def _provision(
    places: Mapping[str, Path], hospitals: Hospitals, hosts: Sequence[str], owner: Owner | None, clock: Callable[[], int]
) -> bool:
    done, trial = places["authority"] / DONE, places["authority"] / "kit"
    if done.exists():
        return False
    for place in places.values():
        _clear(place)
    kit = make_kit(trial, list(hospitals.sites), hosts, clock=clock)
    endpoints = EndpointAuthority(clock())
    token, password = secrets.token_hex(32).encode(), secrets.token_hex(24)
    parties = (kit.coordinator, kit.analyst, *kit.participants)
    for party in parties:
        place = places[party.name]
        shutil.copytree(party.identity, place / "identity")
        if party is not kit.analyst:
            key, certificate = endpoints.issue((party.name, *_LOOPBACK))
            _write(place / "metrics" / "key.pem", key, _PRIVATE)
            _write(place / "metrics" / "certificate.pem", certificate, _OPEN)
            _write(place / "metrics" / "token", token, _PRIVATE)
    _records(places, kit, hospitals, clock)
    _write(places[kit.coordinator.name] / "database" / "pgpass", f"*:*:*:{DATABASE_USER}:{password}\n".encode(), _PRIVATE)
    # Whoever reads these runs as another user; each lies alone in a volume that only its reader mounts.
    for name, files in {
        "database": {"password": password.encode()},
        "grafana": {"password": secrets.token_urlsafe(18).encode()},
        "prometheus": {"token": token, "authority.pem": endpoints.certificate_pem},
    }.items():
        places[name].chmod(0o755)
        for file, data in files.items():
            _write(places[name] / file, data, _OPEN)
    for party in parties:
        _give(places[party.name], owner)
    _write(done, b"", _OPEN)
    return True


def _records(places: Mapping[str, Path], kit: Kit, hospitals: Hospitals, clock: Callable[[], int]) -> None:
    """Each site's records and pins, and the analyst's schema."""
    pins = {party.name: load_credentials(party.identity, clock()).identity.fingerprint for party in kit.participants}
    table = ", ".join(f"{json.dumps(name)} = {json.dumps(fingerprint)}" for name, fingerprint in pins.items())
    for party in kit.participants:
        hospitals.sites[party.name].write(places[party.name] / "data", "records")
        _write(places[party.name] / "peers.toml", f"{{ {table} }}\n".encode(), _OPEN)
    schema = resources.files("veilsum_deploy") / "demo_data" / "breast_cancer.toml"
    _write(places[kit.analyst.name] / "schema.toml", schema.read_bytes(), _OPEN)


def _clear(directory: Path) -> None:
    """Empty a directory, which may be a volume's mount point and stay."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _write(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(data)


def _give(place: Path, owner: Owner | None) -> None:
    """Give a party's files away, the innermost first: afterwards they are not ours to look into."""
    place.chmod(0o700)
    if owner is not None:
        for path in (*reversed(list(place.rglob("*"))), place):
            os.chown(path, owner.uid, owner.gid)


def _owner(text: str | None) -> Owner | None:
    """The owner, where we may give files away."""
    if text is None or os.geteuid() != 0:
        return None
    uid, _, gid = text.partition(":")
    if not (uid.isdecimal() and gid.isdecimal()):
        raise Misuse(f"{text!r} is not an owner.", "For example --owner 10001:10001.")
    return Owner(int(uid), int(gid))


app = typer.Typer(add_completion=False)


@app.command()
def main(
    into: Annotated[list[str], typer.Option("--into", help="NAME=DIRECTORY of a party's files; one for each.")],
    owner: Annotated[str | None, typer.Option("--owner", help="UID:GID of the parties' files, when run as root.")] = None,
    host: Annotated[list[str] | None, typer.Option("--host", help="Where the coordinator is reached; repeatable.")] = None,
) -> None:
    """Make keys, tokens, passwords and demo records of a federation for trying out, once."""
    places = {}
    for item in into:
        name, sign, directory = item.partition("=")
        if not sign or name in places:
            raise Misuse(
                f"--into {item} is not NAME=DIRECTORY, or repeats a name.", "For example --into north=/provision/north."
            )
        places[name] = Path(directory)
    made = provision(places, host or TRIAL_HOSTS, _owner(owner), lambda: int(time.time()))
    print_line("A federation for trying out was made." if made else "The federation was made before; it is kept.")


class EndpointAuthority:
    """Signs the certificates of endpoints; its key lives as long as this object.

    Args:
        now: Unix seconds.
    """

    def __init__(self, now: int) -> None:
        self._valid = now - 300, now - 300 + DAYS * 86400
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "veilsum trial metrics")])
        usage = x509.KeyUsage(
            False, False, False, False, False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False
        )
        self._certificate = (
            certificate_builder(self._name, self._name, self._key.public_key(), *self._valid)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate_pem(self) -> bytes:
        """The authority's own certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, hosts: Sequence[str]) -> tuple[bytes, bytes]:
        """Key and certificate, both PEM, of an endpoint that is asked by these names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = []
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(bare_host(host))))
            except ValueError:
                names.append(x509.DNSName(host))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
        certificate = (
            certificate_builder(subject, self._name, key.public_key(), *self._valid)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return pem, certificate.public_bytes(serialization.Encoding.PEM)


if __name__ == "__main__":
    run(app)
