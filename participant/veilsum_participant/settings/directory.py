"""Pins from the federation's directory: confirmed once by its words, and refused as soon as it is another.

The file that ``policy.directory`` names counts only if it is, to the last bit of its root, the one that the operator
confirmed: a copy of that lies beside the state file. A site neither shows nor confirms words of a directory that does not list
its own key, so words that all operators agree on are those of one in which everyone's key is right, whatever the authority
signs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from veilsum_node.errors import ConfigurationError, HostileInput, Misuse, told_as
from veilsum_node.identity import Credentials, Role
from veilsum_node.identity.directory import Directory, check_words, read_directory
from veilsum_node.identity.files import replace_file

if TYPE_CHECKING:
    from veilsum_participant.settings.config import ParticipantConfig

_SHOW = "Run `veilsum participant directory show`, compare its words with the other sites, then `directory confirm`."


def confirmed_path(config: ParticipantConfig) -> Path:
    """Where the copy of the confirmed directory lies."""
    return config.state.with_name(f"{config.state.stem}.directory.json")


def confirmed_directory(config: ParticipantConfig, credentials: Credentials) -> Directory | None:
    """The directory that was confirmed last, which may have expired since; None where none was.

    Raises:
        ConfigurationError: the copy cannot be read or does not verify.
    """
    path = confirmed_path(config)
    return read_directory(path, credentials.authority) if path.exists() else None


def given_directory(path: Path, credentials: Credentials, at: int) -> Directory:
    """A directory that may be shown and confirmed: valid at ``at`` (Unix seconds), with this site's own key.

    Raises:
        ConfigurationError: it cannot be read, does not verify, is out of its time, or lists this site under another key or not
            at all.
    """
    directory = read_directory(path, credentials.authority)
    with told_as(ConfigurationError, HostileInput, what=path):
        directory.check_time(at)
    own = credentials.identity
    listed = directory.keys(Role.PARTICIPANT).get(own.name)
    if listed != own.fingerprint:
        found = "does not list this site" if listed is None else "lists this site under another key"
        raise ConfigurationError(
            f"{path}: the directory {found} ({own.name}, key {own.fingerprint}).",
            "Do not confirm it. Ask the authority's operator for one with this key, and tell the other sites.",
        )
    return directory


def confirm(config: ParticipantConfig, credentials: Credentials, directory: Directory, heard: str) -> None:
    """Take a :func:`given_directory` as confirmed, after the words that another site read out.

    Raises:
        Misuse: the words are not whole, or misheard.
        HostileInput: they are another directory's; or this one is older than the confirmed one, or another of its version.
        StateError: the copy cannot be written.
    """
    check_words(heard, directory)
    check_later(confirmed_directory(config, credentials), directory)
    replace_file(confirmed_path(config), directory.data)


def check_later(old: Directory | None, new: Directory) -> None:
    """Check that a directory may follow the confirmed one: it is the same, or of a later version.

    Raises:
        HostileInput: it may not.
    """
    if old is None or new.root == old.root or new.version > old.version:
        return
    if new.version == old.version:
        raise HostileInput(
            f"This is another directory than the confirmed one, of the same version {new.version}.",
            "The authority signed two: do not confirm it, and tell the other sites.",
        )
    raise HostileInput(
        f"The directory is of version {new.version}; the confirmed one is of version {old.version}.",
        "Use the later one, or ask the authority's operator for a new version.",
    )


def with_pins(config: ParticipantConfig, credentials: Credentials, at: int) -> tuple[ParticipantConfig, Directory | None]:
    """The configuration with the pins of its confirmed directory, and that directory; unchanged where it names none.

    Raises:
        ConfigurationError: the directory is not the confirmed one, out of its time, or wrong.
        Misuse: ``not_trusted`` names nobody in it.
    """
    policy = config.policy
    if policy.directory is None:
        return config, None
    directory, confirmed = given_directory(policy.directory, credentials, at), confirmed_directory(config, credentials)
    if confirmed is None:
        raise ConfigurationError(f"The directory {policy.directory} was not confirmed.", _SHOW)
    if confirmed.root != directory.root:
        raise ConfigurationError(
            f"The directory {policy.directory} (version {directory.version}) is not the one that was confirmed"
            f" (version {confirmed.version}).",
            _SHOW,
        )
    keys = directory.keys(Role.PARTICIPANT)
    if unknown := sorted(set(policy.not_trusted) - set(keys)):
        raise Misuse(f"policy.not_trusted names {unknown[0]!r}, who is not in the directory.", "Correct or remove the name.")
    pins = {name: key for name, key in keys.items() if name not in policy.not_trusted}
    return config.model_copy(update={"policy": policy.model_copy(update={"trusted": pins})}), directory
