"""The registered methods: what a study may run by name."""

from collections.abc import Mapping
from typing import Any

from veilsum_coordinator.methods.fedavg import FedAvg
from veilsum_coordinator.methods.fedcgs import FedCGS
from veilsum_coordinator.methods.federated_evaluation import FederatedEvaluation
from veilsum_coordinator.methods.fedpft import FedPFT
from veilsum_coordinator.methods.fedsgd import FedSGD
from veilsum_coordinator.methods.gbdt import GBDT
from veilsum_coordinator.methods.ggeur import GGEUR
from veilsum_coordinator.methods.hfedatm import HFedATM
from veilsum_coordinator.methods.ofedavg import OFedAvg
from veilsum_coordinator.methods.pca import PCA
from veilsum_coordinator.methods.regression import Regression
from veilsum_coordinator.methods.slot_align import SlotAlign
from veilsum_coordinator.methods.statistics import FederatedStatistics
from veilsum_coordinator.parts.base import Method
from veilsum_node.config import did_you_mean
from veilsum_node.errors import ConfigurationError

_ALL = (
    FederatedStatistics(),
    Regression(),
    PCA(),
    SlotAlign(),
    OFedAvg(),
    FedCGS(),
    FedPFT(),
    GBDT(),
    FedSGD(),
    FedAvg(),
    HFedATM(),
    GGEUR(),
    FederatedEvaluation(),
)

METHODS: Mapping[str, Method[Any]] = {method.name: method for method in _ALL}
"""Every method by name."""


def get_method(name: str) -> Method[Any]:
    """Return a registered method.

    Raises:
        ConfigurationError: there is none of this name; the nearest is named.
    """
    if name not in METHODS:
        raise ConfigurationError(f"No method is called {name!r}.", did_you_mean(name, METHODS))
    return METHODS[name]
