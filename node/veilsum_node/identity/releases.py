"""Releases of the federation's directory: the authority lists whom it certified, signs the list as the next version, keeps it.

Who was left out of a release stays out of later ones, whatever is certified meanwhile, until the operator takes them in again.
What a directory is, and how a site reads one, is :mod:`veilsum_node.identity.directory`'s.

    directories/N.json   beside the authority's record: every release, by version
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography import x509

from veilsum_node.canonical import canonical
from veilsum_node.errors import Misuse, StateError
from veilsum_node.identity.authority import DEFAULT_DAYS, Authority
from veilsum_node.identity.certificate import federation_id
from veilsum_node.identity.directory import FORMAT, LISTED, directory_root, read_directory
from veilsum_node.identity.files import MAX_FILE_BYTES, write_new
from veilsum_node.identity.record import Issued, latest_by_place
from veilsum_node.identity.signatures import Label, SigningKey


def build_directory(
    issued: Iterable[Issued], authority: x509.Certificate, key: SigningKey, *, version: int, at: int, expires: int
) -> bytes:
    """Make and sign the directory of the parties whose latest certificates are given; the bytes of its file.

    Raises:
        Misuse: nobody is left to list, or too many for one file.
    """
    members = [
        {"name": name, "role": entry.role.value, "fingerprint": entry.fingerprint}
        for name, entry in sorted(latest_by_place(issued).items())
        if entry.role in LISTED and entry.expires > at and not entry.subject  # a login's key is gone in hours
    ]
    if not members:
        raise Misuse("No participant or analyst is left to list.", "Sign their requests first.")
    head = {"format": FORMAT, "federation": federation_id(authority), "version": version, "issued": at, "expires": expires}
    root = directory_root(head, members)
    data = canonical({**head, "members": members, "root": root, "signature": key.sign(Label.DIRECTORY, root)})
    if len(data) > MAX_FILE_BYTES:
        raise Misuse(f"The directory would be larger than {MAX_FILE_BYTES} bytes.", "Leave parties out, or pin by hand.")
    return data


def sign_directory(
    authority: Authority, *, days: int = DEFAULT_DAYS, without: Sequence[str] = (), again: Sequence[str] = ()
) -> bytes:
    """Sign the federation's directory as it is now, under the next version, and keep it on record.

    Args:
        authority: whose record says who is certified, and whose key signs.
        days: how long it is valid, 1 to 3653, and not beyond the authority's own certificate.
        without: names to leave out, though their certificates are valid, beside those of :func:`left_out`.
        again: names of :func:`left_out` to take in.

    Returns:
        The bytes of the file for all sites.

    Raises:
        Misuse: the days are wrong, a name to leave out was never signed for, one to take in was not left out, or nobody is
            left.
        StateError: it cannot be written, or another operator signed the same version at this moment.
        Damage: the record of certificates cannot be read.
    """
    version = 1 + _last_version(authority)
    now, issued = authority.now(), authority.issued()  # read after the version, or a later version could list what is older
    if unknown := sorted(set(without) - {entry.name for entry in issued}):
        raise Misuse(f"{unknown[0]!r} was never signed for.", "`veilsum federation list` shows who was.")
    out = _left_out(authority, version - 1, issued)
    if known := sorted(set(again) - set(out)):
        raise Misuse(f"{known[0]!r} was not left out of the last directory.", "Whoever is certified is in the next one.")
    out = [*(name for name in out if name not in again), *without]
    data = build_directory(
        [entry for entry in issued if entry.name not in out],
        authority.certificate,
        authority.signing_key,
        version=version,
        at=now,
        expires=authority.expiry(now, days, "directory"),
    )
    path = _path(authority, version)
    try:
        write_new(path, data)
    except StateError as error:
        if path.exists():
            message = f"Another operator signed version {version} of the directory at this moment."
            raise StateError(message, "Sign again, for the next version.") from error
        raise
    return data


def left_out(authority: Authority) -> list[str]:
    """Participants and analysts who are not in the last release, though certified when it was signed.

    Raises:
        StateError: the record of certificates is missing.
        Damage: it cannot be read.
    """
    return _left_out(authority, _last_version(authority), authority.issued())


def _left_out(authority: Authority, version: int, issued: Sequence[Issued]) -> list[str]:
    if not version:
        return []
    last = read_directory(_path(authority, version), authority.certificate)
    listed = [entry for entry in issued if entry.role in LISTED and not entry.subject]
    could = {entry.name for entry in listed if entry.issued < last.issued <= entry.expires}
    return sorted(could - {member.name for member in last.members})


def _last_version(authority: Authority) -> int:
    """0 before the first."""
    kept = (authority.directory / "directories").glob("*.json")
    return max((int(path.stem) for path in kept if path.stem.isdecimal()), default=0)


def _path(authority: Authority, version: int) -> Path:
    return authority.directory / "directories" / f"{version}.json"
