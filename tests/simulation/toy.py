"""Stand-ins that make a history cheap, put in place of the real ones for the time of a simulation only.

BFV becomes addition modulo the same t under a key's pad, on a ring of a few slots, so a small vector still takes several
ciphertexts; masks, tags, lanes and range checks stay as they are. Signatures and certificates are real, but the same question
(key, label, bytes, signature, time) is answered once and remembered.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from numpy.typing import NDArray

from veilsum_coordinator.protocol import accumulator
from veilsum_node import identity
from veilsum_node.errors import HostileInput
from veilsum_participant.protocol import core
from veilsum_privacy.securesum import bfv, boxes, parameters
from veilsum_privacy.securesum.parameters import BfvParameters

Slots = NDArray[np.uint64]

_LOADED = (accumulator, core, boxes)  # whose imports hold all names that are replaced

RING = dataclasses.replace(parameters.BFV_4096, degree=5)
"""Two data slots a ciphertext, the real t of the smaller set."""


def replace_everywhere(stack: ExitStack, original: object, stand_in: object) -> None:
    """Let every loaded module of the product that imported ``original`` see ``stand_in`` until the stack ends."""
    found = False
    for name, module in list(sys.modules.items()):
        if name.startswith("veilsum_"):
            for attribute, value in list(vars(module).items()):
                if value is original:
                    found = True
                    setattr(module, attribute, stand_in)
                    stack.callback(setattr, module, attribute, original)
    assert found, f"nothing uses {original!r} any more"


def _pad(key: bytes, modulus: int, slots: int) -> Slots:
    stream = hashlib.shake_128(key).digest(8 * slots)
    return np.frombuffer(stream, dtype="<u8") % np.uint64(modulus)


def _frame(count: int, slots: Slots) -> bytes:
    return b"toy" + count.to_bytes(2, "big") + slots.astype("<u8").tobytes()


def _read(data: bytes, slots: int) -> tuple[int, Slots]:
    if len(data) != 5 + 8 * slots or not data.startswith(b"toy"):
        raise HostileInput("A ciphertext cannot be parsed under the study's parameters.")
    return int.from_bytes(data[3:5], "big"), np.frombuffer(data[5:], dtype="<u8").astype(np.uint64)


def toy_slots(data: bytes) -> int:
    """How many slots a ciphertext has."""
    return (len(data) - 5) // 8


class ToyAdder:
    """In the place of :class:`veilsum_privacy.securesum.bfv.Adder`."""

    def __init__(self, ring: BfvParameters, slots: int, summands: int, place: memoryview | None = None) -> None:
        self.parameters, self._total = ring, (0, np.zeros(slots, dtype=np.uint64))

    def add(self, data: bytes) -> None:
        """Add one fresh ciphertext."""
        count, slots = _read(data, len(self._total[1]))
        if count != 1:
            raise HostileInput("A ciphertext does not have the shape that the study's parameters give.")
        modulus = np.uint64(self.parameters.plain_modulus)
        self._total = self._total[0] + count, (self._total[1] + slots) % modulus

    def view(self) -> memoryview:
        """The bytes of the sum."""
        return memoryview(_frame(*self._total))


class ToyKey:
    """In the place of :class:`veilsum_privacy.securesum.bfv.SecretKey`."""

    made = 0

    def __init__(self, key: bytes, ring: BfvParameters) -> None:
        self.parameters = ring
        self._key, self._own = key, _pad(key, ring.plain_modulus, ring.degree)

    @classmethod
    def generate(cls, ring: BfvParameters) -> ToyKey:
        """A key like no other of this process."""
        ToyKey.made += 1
        return cls(hashlib.sha256(ToyKey.made.to_bytes(8, "big")).digest(), ring)

    @classmethod
    def parse(cls, data: bytes, ring: BfvParameters) -> ToyKey:
        """A dealt key."""
        if len(data) != 32:
            raise HostileInput("A dealt key cannot be parsed, or has different BFV parameters than the study's plan.")
        return cls(data, ring)

    def to_bytes(self) -> bytes:
        """The key's bytes."""
        return self._key

    def encrypt(self, slots: Slots) -> bytes:
        """Slots below t, under the key's pad."""
        return _frame(1, (slots + self._own[: len(slots)]) % np.uint64(self.parameters.plain_modulus))

    def decrypt_sum(self, data: bytes, slots: int, summands: int) -> Slots:
        """The slots of a sum of so many at most: it has no noise but their number."""
        if _read(data, slots)[0] > summands:
            raise HostileInput("A sum holds more noise than its contributions leave.")
        return self.decrypt(data, slots, summands)

    def decrypt(self, data: bytes, slots: int, summands: int) -> Slots:
        """The slots of a sum."""
        count, found = _read(data, slots)
        modulus = self.parameters.plain_modulus
        away = np.array([count * int(pad) % modulus for pad in self._own[:slots]], dtype=np.uint64)
        return (found + np.uint64(modulus) - away) % np.uint64(modulus)


@contextmanager
def stand_ins(*others: tuple[object, object]) -> Iterator[None]:
    """Put the stand-ins in place, and ``others`` as pairs of an original and what stands in for it."""
    with ExitStack() as stack:
        for name in ("BFV_8192", "BFV_4096"):
            stack.callback(setattr, parameters, name, getattr(parameters, name))
            setattr(parameters, name, RING)
        replace_everywhere(stack, bfv.SecretKey, ToyKey)
        replace_everywhere(stack, bfv.Adder, ToyAdder)
        replace_everywhere(stack, identity.verify, remembered(identity.verify))
        for original, stand_in in others:
            replace_everywhere(stack, original, stand_in)
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, logging.NOTSET)
        yield


def remembered(function: Callable[..., None]) -> Callable[..., None]:
    """A check of a signature that is made once for the same question; what fails is asked again."""
    known: dict[tuple[int, str, bytes, bytes], object] = {}

    def check(public_key: object, label: str, data: bytes, signature: bytes) -> None:
        question = (id(public_key), label, data, signature)
        if question not in known:
            function(public_key, label, data, signature)
            if len(known) >= 50_000:
                known.clear()
            known[question] = public_key  # kept, so that its id stays its own

    return check
