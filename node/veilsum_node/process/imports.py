"""Imports: of parts by name when they are asked for, and of packages that not every installation has."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

from veilsum_node.errors import ConfigurationError

T = TypeVar("T")

_LEFT_OUT = {"torch": "PyTorch", "ot": "the package POT", "tenseal": "the package TenSEAL"}


class Registry(Mapping[str, T]):
    """Parts by name, each loaded when it is first asked for: who only counts or compares names loads none.

    Args:
        package: in which the parts' modules lie.
        places: of each name its module in the package and the class there, as ``"fedavg:FedAvg"``.
        made: makes the part of the class; the same one is handed out ever after.
    """

    def __init__(self, package: str, places: Mapping[str, str], made: Callable[[Any], T]) -> None:
        self._package, self._places, self._made = package, places, made
        self._parts = dict[str, T]()

    def __getitem__(self, name: str) -> T:
        """The part of this name.

        Raises:
            KeyError: there is none.
        """
        if name not in self._parts:
            module, _, kind = self._places[name].partition(":")
            found = getattr(import_module(f"{self._package}.{module}"), kind)
            self._parts.setdefault(name, self._made(found))  # of two threads that make it at once, the first
        return self._parts[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is a part of this name."""
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        """The names, in order."""
        return iter(self._places)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._places)


@contextmanager
def networks_may_be_missing() -> Iterator[None]:
    """Inside, who has no PyTorch is told how to get it: an analyst's installation computes networks only if asked to.

    Raises:
        ConfigurationError: names what is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _LEFT_OUT:
            raise
        from veilsum_node.process.software import install_extra  # which looks for what is installed

        raise ConfigurationError(
            f"This needs {_LEFT_OUT[error.name]}, which this installation lacks.",
            f"Install it with: {install_extra('networks')}",
        ) from error
