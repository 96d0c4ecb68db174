"""Frozen encoders at a site: find the file that a study names by its hash, and make features of records, one by one.

A record's features depend on it alone, to the last bit. That is what the bound on its part in a sum rests on, and it is not
left to the program: each record runs by itself, in one shape, from one aligned buffer, on one thread, with the random
generator set to one state, in evaluation mode and without gradients. A program that writes into its own tensors is refused
when it is loaded; one that does so only on some record is loaded anew after it. A record on which it fails, or whose features
are not finite, is an invalid record: a row of NaN. The features are bounded by the task's clip norm and by nothing here.

Features are computed on the device that was chosen (:mod:`veilsum_privacy.training.device`).

What loading a program trusts is said in :mod:`veilsum_participant.data.programs`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import ConfigurationError, Misuse, told_as
from veilsum_node.identity.files import stated_file
from veilsum_participant.data.programs import read_program
from veilsum_participant.settings.dataset_config import EncoderConfig
from veilsum_participant.settings.encoder_files import find_path
from veilsum_privacy.computation.purity import impurity
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.training import device, weights

if TYPE_CHECKING:
    from veilsum_privacy.tasks.agreed import AgreedTask

MAX_PROGRAM_BYTES = 4 << 30
"""Largest program file that is read."""

REMEMBERED = 1 << 27
"""Most values of records that are remembered: 1 GiB."""


_ALONE = threading.RLock()  # the number of threads and the random generator are torch's, for the whole process


class ProgramEncoder:
    """A frozen program that turns scaled columns into features; see :func:`load_encoder`."""

    def __init__(self, data: bytes, declared: Program) -> None:
        import torch  # takes seconds, and most studies need none

        self._data = data
        self._declared = declared
        self._device = device.chosen()
        self._program = read_program(data, declared.format, self._device)
        self._input = torch.zeros((1, *declared.inputs), dtype=torch.float32, device=self._device)  # torch aligns it
        self._known: dict[bytes, Floats] = {}
        self._lock = threading.Lock()
        with _still():
            self._probe()

    def __call__(self, features: Floats) -> Floats:
        """Features (n, width) float64 of scaled columns (n, inputs) in [-1, 1]; NaN in the rows of invalid records.

        What a record gives is remembered: every round of a study asks for some of the same records.

        Raises:
            Misuse: the columns do not fill the program's input.
        """
        if features.ndim != 2 or features.shape[1] != self._declared.size:
            raise Misuse(f"The program takes {self._declared.size} values of a record; the columns give {features.shape[1:]}.")
        rows = np.ascontiguousarray(features, dtype=np.float32)
        result = np.full((len(rows), self._declared.width), np.nan)
        with self._lock:  # studies that name one program share it
            keys, new = [hashlib.sha256(row).digest() for row in rows], list[int]()
            for place, key in enumerate(keys):
                if (known := self._known.get(key)) is None:
                    new.append(place)
                else:
                    result[place] = known
            if new:
                with _still():
                    for place in new:
                        self._encode(rows[place], result[place])
                if (len(self._known) + len(new)) * self._declared.width > REMEMBERED:
                    self._known.clear()
                self._known.update((keys[place], result[place].copy()) for place in new)
        return result

    def _encode(self, row: NDArray[np.float32], place: Floats) -> None:
        """Write one record's features into ``place``; leave its NaN where the record is invalid."""
        try:
            output = self._run(row)
        except Exception:  # noqa: BLE001  nothing raises because of what a record holds
            output = None
        changed = self._program.changed
        if changed:
            self._program = read_program(self._data, self._declared.format, self._device)
        elif output is not None and output.shape == place.shape and np.isfinite(output).all():
            place[:] = output

    def _run(self, row: NDArray[np.float32]) -> Floats:
        import torch

        torch.manual_seed(0)  # of every device
        self._input.copy_(torch.from_numpy(row).reshape(self._input.shape))
        output = self._program.run(self._input)
        if not isinstance(output, torch.Tensor) or output.ndim != 2 or len(output) != 1:
            raise TypeError("no tensor of one row")
        if output.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"features of {output.dtype}")
        return cast(Floats, output.cpu().numpy()[0].astype(np.float64))

    def _probe(self) -> None:
        """Run it on made-up records: what it does wrong on any record is then found before a study relies on it."""
        size, width = self._declared.size, self._declared.width
        found = []
        for value in (0.0, 0.5, 0.0):
            try:
                output = self._run(np.full(size, value, dtype=np.float32))
            except Exception as error:  # whatever the program raises
                raise ConfigurationError(
                    f"It does not run on one record of shape {(1, *self._declared.inputs)} in float32, or gives no row of "
                    f"floating-point features ({type(error).__name__}).",
                    "Compare the study's encoder.inputs with the program."
                    + (f" If it holds tensors of the CPU, it cannot run on {self._device}." if self._device != "cpu" else ""),
                ) from error
            found.append(output)
        if found[0].shape != (width,):
            raise ConfigurationError(
                f"It makes {found[0].size} features; the study's encoder.width is {width}.", "Correct the study."
            )
        if self._program.changed or found[0].tobytes() != found[2].tobytes() or not self._pure():
            raise ConfigurationError("It keeps values between records.", "Use a network in evaluation mode, without state.")

    def _pure(self) -> bool:
        """Whether made-up records have the same features alone, in company and in any order (:func:`.purity.impurity`)."""

        def compute(rows: Floats) -> Floats:
            result = np.full((len(rows), self._declared.width), np.nan)
            for row, place in zip(rows.astype(np.float32), result, strict=True):
                self._encode(row, place)
            return result

        return impurity(compute, self._declared.size) is None


def load_encoder(path: Path, declared: Program) -> ProgramEncoder:
    """Load the program of a study from a site's own file; its hash is checked before anything is made of it.

    Raises:
        ConfigurationError: the file is missing, too large, not the one that the study names, or not such a program; the
            message names the file.
    """
    advice = "Get the exact file the study was made with, or correct the study."
    data = stated_file(path, "encoder", declared.sha256, by="the study names", advice=advice, most=MAX_PROGRAM_BYTES)
    with told_as(ConfigurationError, ConfigurationError, what=path):
        return ProgramEncoder(data, declared)


def find_encoder(encoders: Mapping[str, EncoderConfig], declared: Program) -> ProgramEncoder:
    """Load the program of a study from the configured file that has its hash.

    Raises:
        ConfigurationError: as :func:`find_path` and :func:`load_encoder`.
    """
    return load_encoder(find_path(encoders, declared.sha256), declared)


def hold_weights(path: Path, task: AgreedTask) -> None:
    """Take the frozen weights of a task's model from a file, for this process.

    Raises:
        ConfigurationError: it is not the file that the study names, or does not hold what the model needs.
    """
    weights.offer(task.terms.weights, path)
    if task.task.architecture is not None:
        task.task.architecture.check_weights()


@contextmanager
def _still() -> Iterator[None]:
    """One thread, no gradients, and no optimiser that would rewrite a program after its first runs; then all as it was."""
    import torch

    unoptimised = torch.jit.optimized_execution(False)  # type: ignore[attr-defined]
    gpus = [torch.device(where).index] if (where := device.chosen()).startswith("cuda") else []
    with _ALONE, torch.random.fork_rng(devices=gpus), torch.no_grad(), unoptimised:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
