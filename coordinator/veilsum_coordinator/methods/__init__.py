"""The registered methods: what a study may run by name. Each is loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from veilsum_node.config import did_you_mean
from veilsum_node.errors import ConfigurationError
from veilsum_node.process.imports import Registry

if TYPE_CHECKING:
    from veilsum_coordinator.parts.base import Method

METHODS: Registry[Method[Any]] = Registry(
    __name__,
    {
        "statistics": "statistics:FederatedStatistics",
        "regression": "regression:Regression",
        "pca": "pca:PCA",
        "slot-align": "slot_align:SlotAlign",
        "o-fedavg": "ofedavg:OFedAvg",
        "fedcgs": "fedcgs:FedCGS",
        "fedpft": "fedpft:FedPFT",
        "gbdt": "gbdt:GBDT",
        "fedsgd": "fedsgd:FedSGD",
        "fedavg": "fedavg:FedAvg",
        "hfedatm": "hfedatm:HFedATM",
        "ggeur": "ggeur:GGEUR",
        "federated-evaluation": "federated_evaluation:FederatedEvaluation",
    },
    lambda kind: kind(),
)
"""Every method by name."""


def get_method(name: str) -> Method[Any]:
    """Return a registered method.

    Raises:
        ConfigurationError: there is none of this name; the nearest is named.
    """
    if name not in METHODS:
        raise ConfigurationError(f"No method is called {name!r}.", did_you_mean(name, METHODS))
    return METHODS[name]
