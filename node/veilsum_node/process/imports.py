"""Imports: much at once without looking for garbage in it, and of packages that not every installation has."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from veilsum_node.errors import ConfigurationError
from veilsum_node.process.software import install_extra

_LEFT_OUT = {"torch": "PyTorch", "ot": "the package POT", "tenseal": "the package TenSEAL"}


@contextmanager
def loading(*, serves: bool = False) -> Iterator[None]:
    """Inside, nothing looks for garbage: imports make much that lasts and little that does not.

    In a process that ``serves`` for long, later searches leave what is there at the end alone too: they would go over all of
    it again and again.
    """
    were = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if serves:
            gc.freeze()
        if were:
            gc.enable()


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
        raise ConfigurationError(
            f"This needs {_LEFT_OUT[error.name]}, which this installation lacks.",
            f"Install it with: {install_extra('networks')}",
        ) from error
