"""Stand-ins that make a history cheap, put in place of the real ones for the time of a simulation only.

The ring has eight coefficients, and its products come from integers in place of the library's transforms, so a small vector
still takes several pieces; keys, errors, masks, check words, lanes and range checks stay as they are. Signatures and
certificates are real, but the same question (key, label, bytes, signature, time) is answered once and remembered.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from numpy.typing import NDArray

from veilsum_node import identity
from veilsum_participant.protocol import core
from veilsum_privacy.securesum import products, ring, sum_plan
from veilsum_privacy.securesum.ring import RingParameters

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]

_LOADED = (core,)  # whose imports hold all names that are replaced

REAL = (ring.RING_2048_FEW, ring.RING_4096_FEW, ring.RING_2048, ring.RING_4096)
RINGS = tuple(dataclasses.replace(real, degree=8) for real in REAL)
"""The real moduli of the sets for up to 1,024 members."""


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


class ToyProducts:
    """In the place of :class:`veilsum_privacy.securesum.products.KeyProducts`: term by term, by integers."""

    def __init__(self, key: Integers, parameters: RingParameters) -> None:
        assert key.shape == (parameters.degree,)
        self._key, self._prime = [int(part) for part in key], parameters.prime

    def times(self, polynomials: Words) -> Words:
        """(k, N) products mod q of (k, N) polynomials below q."""
        count, degree = polynomials.shape
        out = np.empty((count, degree), dtype=np.uint64)
        for row, polynomial in enumerate(polynomials.tolist()):
            found = [0] * degree
            for place, factor in enumerate(self._key):
                for index, term in enumerate(polynomial):
                    over, at = divmod(place + index, degree)
                    found[at] += -factor * term if over else factor * term
            out[row] = [item % self._prime for item in found]
        return out


@contextmanager
def stand_ins(*others: tuple[object, object]) -> Iterator[None]:
    """Put the stand-ins in place, and ``others`` as pairs of an original and what stands in for it."""
    with ExitStack() as stack:
        for real, toy in zip(REAL, RINGS, strict=True):
            replace_everywhere(stack, real, toy)
        stack.callback(setattr, sum_plan, "PIECE", sum_plan.PIECE)
        sum_plan.PIECE = 1
        replace_everywhere(stack, products.KeyProducts, ToyProducts)
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
