"""The engine over a Ray cluster: where one machine is outgrown."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import uuid4

from veilsum_deploy.simulation.engines import ONE_THREAD, Shared, cores, remembered
from veilsum_node.errors import Misuse, StateError

T = TypeVar("T")
R = TypeVar("R")

RETRIES = 3
"""How often Ray works on an item again whose worker was lost."""


@dataclass(frozen=True)
class _InStore(Generic[T]):
    """A value in a Ray cluster's store."""

    token: str
    boxed: list[Any]  # a reference in a list is handed over as it is, and not fetched before the function runs

    def get(self) -> T:
        value: T = remembered(self.token, lambda: _ray().get(self.boxed[0]))
        return value

    def drop(self) -> None:
        self.boxed.clear()  # the store frees what nobody refers to


class RayEngine:
    """A Ray cluster, or one that is started on this machine.

    Every machine of the cluster needs veilsum of the same version. Data travel with the work; paths are not looked at there.

    Args:
        address: of a cluster; None starts one here that ends with the engine.
        workers: items at a time; None for the cluster's number of cores.

    Raises:
        Misuse: Ray is not installed.
        StateError: the cluster cannot be reached.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        ray = _ray()
        self._own = not ray.is_initialized()
        if self._own:
            environment = {"env_vars": dict.fromkeys(ONE_THREAD, "1")}
            options: dict[str, Any] = {"runtime_env": environment, "log_to_driver": False, "logging_level": "ERROR"}
            if address is None:
                options |= {"num_cpus": workers or cores(), "include_dashboard": False}
            try:
                ray.init(address=address or "local", **options)
            except Exception as error:
                where, advice = f"be reached at {address}", "Check --address."
                if address is None:
                    where = "be started here"
                    advice = "Try again: a busy machine may miss the 15 s that Ray gives its parts. Its logs are in /tmp/ray."
                raise StateError(f"A Ray cluster cannot {where}: {type(error).__name__}.", advice) from error
        self.workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        # Ray retries what its own faults end; what the function raises is its answer and is not tried again.
        self._remote = ray.remote(num_cpus=1, max_retries=RETRIES)(_answer)

    def share(self, value: T) -> Shared[T]:
        return _InStore(uuid4().hex, [_ray().put(value)])

    def map(self, function: Callable[[T], R], items: Sequence[T], *, ordered: bool = True) -> Iterator[R]:
        ray = _ray()
        shipped = ray.put(function)
        waiting = list(range(len(items)))
        pending: dict[Any, int] = {}
        done: dict[int, R] = {}
        upcoming = 0
        try:
            while waiting or pending or done:
                # Twice as many as there are workers: none is idle, and items do not pile up in the store.
                while waiting and len(pending) < 2 * self.workers:
                    index = waiting.pop(0)
                    pending[self._remote.remote(shipped, items[index])] = index
                if pending:
                    ready, _ = ray.wait(list(pending), num_returns=1)
                    for reference in ready:
                        done[pending.pop(reference)] = _unwrapped(ray, reference)
                while done and (not ordered or upcoming in done):
                    yield done.pop(upcoming if ordered else next(iter(done)))
                    upcoming += 1
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)

    def close(self) -> None:
        if self._own:
            _ray().shutdown()


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise Misuse("Ray is not installed.", "Install it with: pip install 'veilsum[ray]'") from error


def _answer(function: Callable[[Any], Any], item: Any) -> tuple[bool, Any]:
    """A function's value, or what it raised: Ray would wrap an exception in one of its own."""
    try:
        return True, function(item)
    except Exception as error:  # noqa: BLE001  raised again where the results are read
        return False, error


def _unwrapped(ray: Any, reference: Any) -> Any:
    try:
        good, value = ray.get(reference)
    except ray.exceptions.RayError as error:
        advice = "See the cluster's logs; --resume goes on from here."
        raise StateError(f"The Ray cluster lost a part of the simulation: {type(error).__name__}.", advice) from error
    if good:
        return value
    raise value
