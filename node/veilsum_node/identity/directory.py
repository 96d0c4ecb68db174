"""The federation's directory: who its participants and analysts are and by which keys, signed by the authority, with one
fingerprint of the whole that people read to each other as words.

A signature alone would make the authority's word the pins. What counts is the fingerprint: operators compare all of its bits,
and each one's software has looked for its own key first. Who confirms, and where that is kept, is decided elsewhere
(:mod:`veilsum_participant.settings.directory`). A coordinator and operators are not listed: no site relies on their keys.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cryptography import x509
from pydantic import Field, StrictInt, StrictStr, StringConstraints, ValidationError

from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse, raising, told_as
from veilsum_node.fields import Frozen, Hex32, Name
from veilsum_node.identity.certificate import Role, federation_id, moment, p256_key
from veilsum_node.identity.files import MAX_FILE_BYTES, read_file
from veilsum_node.identity.signatures import Label, verify

if TYPE_CHECKING:
    from mnemonic import Mnemonic


FORMAT = "veilsum/1/directory"
LISTED = (Role.PARTICIPANT, Role.ANALYST)
WORDS = 24
"""Words of a fingerprint: all 256 bits of the root and 8 that check them, 11 bits each."""

_CLOCKS = 300  # seconds that a site's clock may be behind the authority's

_Signature = Annotated[StrictStr, StringConstraints(pattern=r"^([0-9a-f]{2}){8,72}$")]
_Seconds = Annotated[StrictInt, Field(ge=0, le=2**40)]


class DirectoryMember(Frozen):
    """One party.

    Attributes:
        name: certified, unique in the directory.
        role: participant or analyst.
        fingerprint: of its key, which signs and speaks TLS; as in :class:`~veilsum_node.identity.certificate.Identity`.
    """

    name: Name
    role: Literal[Role.PARTICIPANT, Role.ANALYST]
    fingerprint: Hex32


class _Document(Frozen):
    """The file's JSON, as it is written."""

    format: Literal["veilsum/1/directory"]
    federation: Hex32
    version: StrictInt = Field(ge=1, le=10**9)
    issued: _Seconds
    expires: _Seconds
    members: tuple[DirectoryMember, ...] = Field(min_length=1)
    root: Hex32
    signature: _Signature


class Directory:
    """A directory whose form, root and signature hold; :func:`parse_directory` makes one. Its time is judged apart.

    Attributes:
        version: rises with every directory of a federation.
        issued, expires: first and last valid second, Unix time.
        members: sorted by name.
        root: 32 bytes that depend on all of this and on the federation.
        data: the file's bytes.
    """

    def __init__(self, document: _Document, data: bytes) -> None:
        self.version, self.issued, self.expires = document.version, document.issued, document.expires
        self.members = document.members
        self.root = bytes.fromhex(document.root)
        self.data = data

    def keys(self, role: Role) -> dict[str, str]:
        """Fingerprints by name, of one role."""
        return {member.name: member.fingerprint for member in self.members if member.role is role}

    @property
    def words(self) -> list[str]:
        """The root as 24 words of BIP-39's English list: 256 bits, and a checksum of 8."""
        return _words().to_mnemonic(self.root).split()

    def check_time(self, at: int) -> None:
        """Check that the directory is valid at ``at``, Unix seconds.

        Raises:
            HostileInput: not yet, or no more.
        """
        if at < self.issued - _CLOCKS:
            raise HostileInput(
                f"The directory is not valid yet: it begins on {moment(self.issued)}.", "Check this machine's clock."
            )
        if at > self.expires:
            raise HostileInput(
                f"The directory has expired: it ended on {moment(self.expires)}.",
                "Ask the authority's operator for a new one, and confirm it.",
            )


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """The Merkle tree hash of at least one leaf with SHA-256 (RFC 9162, section 2.1.1): 32 bytes."""
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    left = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + merkle_root(leaves[:left]) + merkle_root(leaves[left:])).digest()


def parse_directory(data: bytes, authority: x509.Certificate) -> Directory:
    """Verify a directory but for its time.

    1. It is canonical JSON of exactly the known keys.
    2. Members are sorted by name, none twice; no key belongs to two.
    3. It begins before it ends.
    4. The root is that of its contents.
    5. It is of the authority's federation, and the authority signed the root.

    Raises:
        HostileInput: a step fails.
    """
    if len(data) > MAX_FILE_BYTES:
        raise HostileInput(f"The directory is larger than {MAX_FILE_BYTES} bytes.")
    parsed = parse_canonical(data, what="directory")
    try:
        document = _Document.model_validate_json(data)
    except ValidationError as error:
        raise HostileInput("The file is not a directory of this version.", "Ask the authority's operator for it.") from error
    names = [member.name for member in document.members]
    for earlier, later in pairwise(names):
        if earlier == later:
            raise HostileInput(f"The directory lists {later!r} twice.")
        if earlier > later:
            raise HostileInput(f"The directory is not in order: {later!r} stands behind {earlier!r}.")
    if len({member.fingerprint for member in document.members}) < len(names):
        raise HostileInput("The directory lists one key under two names.")
    if document.issued >= document.expires:
        raise HostileInput("The directory ends before it begins.")
    root = directory_root(
        {key: parsed[key] for key in ("format", "federation", "version", "issued", "expires")}, parsed["members"]
    )
    if root.hex() != document.root:
        raise HostileInput("The directory's root is not that of its contents.", "It was changed: ask for it again.")
    if document.federation != federation_id(authority):
        raise HostileInput("The directory is of another federation.")
    with raising(HostileInput("The directory is not signed by this federation's authority."), on=HostileInput):
        verify(p256_key(authority.public_key(), "authority"), Label.DIRECTORY, root, bytes.fromhex(document.signature))
    return Directory(document, data)


def read_directory(path: Path, authority: x509.Certificate) -> Directory:
    """:func:`parse_directory` of a file.

    Raises:
        ConfigurationError: it cannot be read, or does not verify; names the file.
    """
    data = read_file(path, "directory of the federation", advice="Ask the authority's operator for it.")
    with told_as(ConfigurationError, HostileInput, what=path):
        return parse_directory(data, authority)


def check_words(heard: str, directory: Directory) -> None:
    """Compare words that somebody read out with a directory's own.

    Raises:
        Misuse: they are not whole; a word is misheard.
        HostileInput: they are another directory's.
    """
    words, known = heard.lower().split(), _words()
    if len(words) != WORDS:
        raise Misuse(f"A directory's fingerprint is {WORDS} words; these are {len(words)}.", "Have them read out again.")
    if unknown := [number for number, word in enumerate(words, 1) if word not in known.wordlist]:
        raise Misuse(f"Word {unknown[0]} ({words[unknown[0] - 1]!r}) is not on the list.", "Have it spelt.")
    if not known.check(" ".join(words)):
        raise Misuse("The words do not fit together: one was misheard.", "Have them read out again.")
    if words != directory.words:
        raise HostileInput(
            "These are the words of another directory than this one. Nothing is confirmed.",
            "Compare versions first. If both have the same one, somebody was given a different directory: tell everyone.",
        )


def changes(old: Directory | None, new: Directory) -> list[str]:
    """What a directory changes, a line each: members added, removed, with a new key or role."""
    before: Mapping[str, DirectoryMember] = {} if old is None else {member.name: member for member in old.members}
    after = {member.name: member for member in new.members}
    lines = []
    for name in sorted({*before, *after}):
        was, now = before.get(name), after.get(name)
        if was is None and now is not None:
            lines.append(f"added: {now.role} {name}, key {now.fingerprint}")
        elif now is None and was is not None:
            lines.append(f"removed: {was.role} {name}")
        elif was is not None and now is not None and was != now:
            role = "" if was.role == now.role else f", now {now.role}"
            key = "" if was.fingerprint == now.fingerprint else f", key {was.fingerprint} -> {now.fingerprint}"
            lines.append(f"changed: {was.role} {name}{role}{key}")
    return lines


def directory_root(head: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> bytes:
    """What the authority signs, and people compare: 32 bytes of the head and the members."""
    return merkle_root([canonical(head), *(canonical(member) for member in members)])


def _words() -> "Mnemonic":
    from mnemonic import Mnemonic  # reads its list from disk

    return Mnemonic("english")
