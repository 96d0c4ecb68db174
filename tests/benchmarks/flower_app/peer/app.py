"""Clients that hold one vector each; the server takes their mean, as FedAvg does or by SecAgg+.

Run by the peers' own interpreter in :mod:`benchmarks.peers`; nothing of veilsum is loaded here.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

flwr: Any = importlib.import_module("flwr.client")
common: Any = importlib.import_module("flwr.common")
serving: Any = importlib.import_module("flwr.server")
workflows: Any = importlib.import_module("flwr.server.workflow")
secaggplus_mod: Any = importlib.import_module("flwr.client.mod").secaggplus_mod

ERROR = {"fedavg": 1e-6, "secagg": 1e-4}
"""What a mean may be off: SecAgg+ rounds values to 2^22 steps between -8 and 8."""


def _vector(values: int) -> Any:
    return np.random.default_rng(0).standard_normal(values, dtype=np.float32)


class Told(serving.strategy.FedAvg):  # type: ignore[misc]
    """FedAvg that tells when a round is over; all clients hold the same vector, so it is the mean."""

    def __init__(self, values: int, error: float, **options: Any) -> None:
        super().__init__(**options)
        self._values, self._error = values, error

    def aggregate_fit(self, *arguments: Any) -> Any:
        """The mean, compared with the exact one."""
        found = super().aggregate_fit(*arguments)
        mean = common.parameters_to_ndarrays(found[0])[0]
        np.testing.assert_allclose(mean, _vector(self._values), rtol=0, atol=self._error)
        with open(os.environ["PEER_MARKS"], "a") as marks:
            marks.write("round\n")
        return found


server = serving.ServerApp()


@server.main()  # type: ignore[untyped-decorator]
def main(grid: Any, context: Any) -> None:
    """All rounds."""
    given = context.run_config
    strategy = Told(
        given["values"],
        ERROR[given["kind"]],
        fraction_evaluate=0.0,
        min_fit_clients=given["clients"],
        min_available_clients=given["clients"],
        initial_parameters=common.ndarrays_to_parameters([np.zeros(given["values"], dtype=np.float32)]),
    )
    config = serving.ServerConfig(num_rounds=given["rounds"])
    fit = {"fit_workflow": workflows.SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)}
    workflow = workflows.DefaultWorkflow(**(fit if given["kind"] == "secagg" else {}))
    workflow(grid, serving.LegacyContext(context=context, config=config, strategy=strategy))


class Own(flwr.NumPyClient):  # type: ignore[misc]
    """Answers with its vector."""

    def __init__(self, values: int) -> None:
        self._values = values

    def fit(self, parameters: Any, config: Any) -> Any:
        """The vector, of one record."""
        return [_vector(self._values)], 1, {}


def _started(context: Any) -> Any:
    return Own(context.run_config["values"]).to_client()


def _mod(message: Any, context: Any, call: Any) -> Any:
    return secaggplus_mod(message, context, call) if context.run_config["kind"] == "secagg" else call(message, context)


client = flwr.ClientApp(client_fn=_started, mods=[_mod])
