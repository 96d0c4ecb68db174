"""The registered methods: what a study may run by name."""

from __future__ import annotations

from collections.abc import Mapping

from veilsum_coordinator.methods.base import Method
from veilsum_coordinator.methods.fedcgs import FedCGS
from veilsum_coordinator.methods.statistics import FederatedStatistics
from veilsum_privacy.config import did_you_mean
from veilsum_privacy.errors import ConfigurationError

METHODS: Mapping[str, Method] = {method.name: method for method in (FederatedStatistics(), FedCGS())}
"""Every method by name."""


def get_method(name: str) -> Method:
    """Return a registered method.

    Raises:
        ConfigurationError: there is none of this name; the nearest is named.
    """
    if name not in METHODS:
        raise ConfigurationError(f"There is no method {name!r}.", did_you_mean(name, METHODS))
    return METHODS[name]
