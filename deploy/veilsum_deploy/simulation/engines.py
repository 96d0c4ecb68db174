"""Where a simulation's work is done: in this process, in processes of this machine, or on a Ray cluster.

An engine maps a function over items and hands results back in the items' order, so that a simulation comes out the same to
the bit wherever it runs. Functions keep nothing between calls: an item whose worker was lost is simply worked on again.

The engine over a Ray cluster: where one machine is outgrown.
"""

import importlib
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from uuid import uuid4

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from veilsum_coordinator.results.reproduction import VARIABLES, set_to_one
from veilsum_node.errors import Misuse, StateError
from veilsum_privacy.training import device

RETRIES = 3
"""How often Ray works on an item again whose worker was lost."""

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S", covariant=True)

ONE_THREAD = (*VARIABLES, "ARROW_NUM_THREADS")
INTERRUPTED = 130
"""Exit status of a worker that Ctrl-C ended."""

_REMEMBERED = 4
_seen: OrderedDict[str, Any] = OrderedDict()
"""What this process has received lately of what is shared, by token."""


class Shared(Protocol[S]):
    """A value that many items need; it travels to a worker once."""

    def get(self) -> S:
        """The value, not to be changed."""
        ...

    def drop(self) -> None:
        """Give it up where it was shared; no item needs it any more."""
        ...


class Engine(Protocol):
    """Maps functions that can be pickled by name, or partials of them."""

    @property
    def workers(self) -> int:
        """How many items are worked on at a time."""
        ...

    def share(self, value: T) -> Shared[T]:
        """Make a value ready for items to refer to."""
        ...

    def map(self, function: Callable[[T], R], items: Sequence[T], *, ordered: bool = True) -> Iterator[R]:
        """Yield the function's value of every item, in the items' order, or as they come.

        Raises:
            StateError: a worker ended by itself, and working on its item again did not help.
            Exception: what the function raised, with its own type.
        """
        ...

    def close(self) -> None:
        """End the workers."""
        ...


@dataclass(frozen=True)
class _Here(Generic[T]):
    value: T

    def get(self) -> T:
        return self.value

    def drop(self) -> None:
        return


class SerialEngine:
    """One item after the other, in this process."""

    workers = 1

    def share(self, value: T) -> Shared[T]:
        return _Here(value)

    def map(self, function: Callable[[T], R], items: Sequence[T], *, ordered: bool = True) -> Iterator[R]:
        with threadpool_limits(1):
            for item in items:
                yield function(item)

    def close(self) -> None:
        return


@dataclass(frozen=True)
class _InFile(Generic[T]):
    """A value in a file of this machine."""

    path: Path

    def get(self) -> T:
        def read() -> Any:
            return pickle.loads(self.path.read_bytes())  # noqa: S301  this process's parent wrote it, in a folder of its own

        value: T = remembered(str(self.path), read)
        return value

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)


class ProcessEngine:
    """Processes of this machine, each in one thread.

    Processes start afresh: a forked one would inherit the threads' locks of the libraries loaded here.
    """

    def __init__(self, workers: int, on: str = device.CPU) -> None:
        self.workers = workers
        self._children: list[Any] = []
        self._folder = Path(tempfile.mkdtemp(prefix="veilsum-simulation-"))
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(workers, context, _begin, (on,))

    def share(self, value: T) -> Shared[T]:
        path = self._folder / uuid4().hex
        path.write_bytes(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
        return _InFile(path)

    def map(self, function: Callable[[T], R], items: Sequence[T], *, ordered: bool = True) -> Iterator[R]:
        futures: list[Future[R]] = []
        try:
            with set_to_one(ONE_THREAD):
                futures = [self._pool.submit(function, item) for item in items]
            self._children = list((getattr(self._pool, "_processes", None) or {}).values())
            for future in futures if ordered else as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            if self._interrupted():  # the workers' Ctrl-C came before this process's own
                raise KeyboardInterrupt from None
            advice = "If memory ran out, use fewer --jobs; --resume goes on from here."
            raise StateError("A process of the simulation exited unexpectedly.", advice) from error
        except BaseException as error:
            if isinstance(error, Exception):
                for left in futures:
                    left.cancel()
            else:  # the user wants no more, now
                self._terminate()
            raise

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _interrupted(self) -> bool:
        """Whether Ctrl-C ended a worker; a broken pool has forgotten its processes, so they are known from before."""
        for child in self._children:
            child.join(1.0)
        return any(child.exitcode == INTERRUPTED for child in self._children)

    def _terminate(self) -> None:
        own = getattr(self._pool, "_processes", None) or {}
        for child in list(own.values()):
            child.terminate()


@contextmanager
def running(engine: Engine) -> Iterator[Engine]:
    """Close an engine at the end, however it comes."""
    try:
        yield engine
    finally:
        engine.close()


def remembered(token: str, read: Callable[[], Any]) -> Any:
    """A shared value by its token; read unless this process had it lately."""
    if token not in _seen:
        _seen[token] = read()
        while len(_seen) > _REMEMBERED:
            _seen.popitem(last=False)
    _seen.move_to_end(token)
    return _seen[token]


def _begin(on: str) -> None:
    """Compute networks on a device. Ctrl-C reaches a worker too and must end it without a word."""
    device.choose(on)
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
