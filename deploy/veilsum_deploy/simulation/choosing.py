"""Which engine a simulation runs on, by its name on the command line."""

from __future__ import annotations

from veilsum_deploy.simulation.engines import Engine, ProcessEngine, SerialEngine, cores
from veilsum_node.errors import Misuse


def make_engine(name: str, workers: int, address: str | None = None) -> Engine:
    """An engine by its name: ``local`` or ``ray``; ``workers`` 0 stands for all cores.

    Raises:
        Misuse: no such engine, an address for ``local``, or Ray is not installed.
        StateError: the Ray cluster cannot be reached.
    """
    if name == "ray":
        from veilsum_deploy.simulation.cluster import RayEngine  # an extra, which loads its own world

        return RayEngine(address, workers or None)
    if name != "local":
        raise Misuse(f"There is no engine {name!r}.", "Use local or ray.")
    if address is not None:
        raise Misuse("--address belongs to a Ray cluster.", "State --engine ray too.")
    count = workers or cores()
    return SerialEngine() if count == 1 else ProcessEngine(count)
