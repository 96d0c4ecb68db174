"""A configuration as a guard is told it: values that its launcher has checked, under the names that the models give them.

What reads a file, checks it and says what is wrong (:mod:`.config`, :mod:`.dataset_config`) is beside no key so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from pydantic import SecretStr

from veilsum_node.errors import ConfigurationError, raising

if TYPE_CHECKING:
    from veilsum_participant.settings.config import ParticipantConfig


class Told:
    """A table of it, which answers as the model that it was made from; nothing of it is shown.

    Args:
        fields: by name, in order.
        derived: what follows from them.
    """

    def __init__(self, fields: Mapping[str, Any], derived: Mapping[str, Any]) -> None:
        vars(self).update(fields, **derived)
        self._stated = tuple(fields)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in self._stated)

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """The same with other values of some fields."""
        other = copy(self)
        vars(other).update(update)
        return other


class ToldConfig(Told):
    """The whole of it; see :class:`~veilsum_participant.settings.config.ParticipantConfig`."""

    def population(self, dataset: str) -> str:
        """The population of an offered dataset."""
        return self.datasets[dataset].population or dataset


def told_config(stated: Any) -> ParticipantConfig:
    """The configuration of what :func:`~veilsum_participant.settings.telling.stated` made of it."""
    return cast("ParticipantConfig", ToldConfig(dict(_told(stated)), {}))


def _told(stated: Any) -> Any:
    match stated:
        case ["table", fields, derived]:
            return Told(*({name: _told(item) for name, item in part.items()} for part in (fields, derived)))
        case ["names", items]:
            return {name: _told(item) for name, item in items.items()}
        case ["list", items]:
            return tuple(map(_told, items))
        case ["path", text]:
            return Path(text)
        case [_, value]:
            return value


def plain(value: object) -> object:
    """What is configured, as JSON has it: secrets as they are, for a process of the same site.

    Raises:
        ConfigurationError: a path is not UTF-8, which no other process could be told.
    """
    match value:
        case SecretStr():
            return value.get_secret_value()
        case Path():
            told = str(value.absolute())
            with raising(ConfigurationError(f"The path {told!a} is not UTF-8.", "Rename it."), on=UnicodeError):
                told.encode()
            return told
        case Mapping():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _ if hasattr(value, "model_copy"):  # a model, or what a guard is told in its place
            return {name: plain(item) for name, item in value}  # type: ignore[attr-defined]
        case _:
            return value
