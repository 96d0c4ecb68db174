"""BFV through TenSEAL, held to what this protocol needs: encrypt, add, decrypt, and nothing that loads what it is given.

TenSEAL ships SEAL's own interface (``tenseal.sealapi``) beside its vectors. It is used here because it alone gives the short
form of a fresh symmetric ciphertext: of the pair (c0, c1) the second is expanded from a seed, so the seed travels in its
place, at half the bytes. So does a sum of few: c0, and the seed of every summand. Larger sums travel whole.

The library's parser ends the process on some malformed bytes (an exception leaves where none may). So it is given nothing but
its own words: what came is inflated here, into a buffer of the expected size; every byte in it that is no number of a
polynomial and no seed must be the one that the library itself writes; and what is parsed is written anew without compression.
The parsed object is checked again; every exception from the library becomes a typed error. This module knows nothing of masks,
lanes or cohorts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from tenseal import sealapi

from veilsum_node.errors import HostileInput, StateError
from veilsum_privacy.securesum.frames import SEED_BYTES, FrameSize, Template, check_frame
from veilsum_privacy.securesum.parameters import BfvParameters

Slots = NDArray[np.uint64]

MAX_SEEDS = 64
"""Most summands whose sum travels as c0 and their seeds: to expand each takes a decryptor about as long as to add two."""

_PARSE_ERRORS = (ValueError, RuntimeError, TypeError, IndexError, MemoryError, OverflowError)


@lru_cache(maxsize=4)
def _context(parameters: BfvParameters) -> Any:
    """SEAL's context; it refuses parameters below 128-bit security."""
    values = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.BFV)
    values.set_poly_modulus_degree(parameters.degree)
    values.set_coeff_modulus(sealapi.CoeffModulus.Create(parameters.degree, list(parameters.prime_bits)))
    values.set_plain_modulus(parameters.plain_modulus)
    context = sealapi.SEALContext(values, True, sealapi.SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        raise StateError(f"SEAL refuses the parameters: {context.parameters_error_message()}.")
    return context


class _Scratch:
    """A file in memory: the library's Python interface saves to and loads from named files only.

    It is open for one object only: who adds up a round may be kept for as long as its study.
    """

    def dump(self, item: Any) -> bytes:
        """The bytes of an object that saves itself."""
        with _memory_file() as file:
            item.save(f"/proc/self/fd/{file}")
            return os.pread(file, os.fstat(file).st_size, 0)

    def load(self, data: bytes, read: Callable[[str], None]) -> None:
        """Let ``read`` load an object from a file that holds ``data``."""
        with _memory_file() as file:
            os.pwrite(file, data, 0)
            read(f"/proc/self/fd/{file}")


@contextmanager
def _memory_file() -> Iterator[int]:
    try:
        file = os.memfd_create("veilsum", os.MFD_CLOEXEC)
    except (AttributeError, OSError) as error:
        raise StateError(
            "This system offers no files in memory.", "veilsum needs Linux and a sufficient limit of open files."
        ) from error
    try:
        yield file
    finally:
        os.close(file)


def _inflate(data: bytes, size: FrameSize) -> bytes:
    """What is inside the frame of an object that was checked by :func:`check_frame`."""
    return bytes(pyarrow.decompress(memoryview(data)[16:], decompressed_size=size.content, codec="zstd", asbytes=True))


@lru_cache(maxsize=4)
def _templates(parameters: BfvParameters) -> dict[FrameSize, Template]:
    """What this library writes around the numbers of a fresh ciphertext, a sum and a key; of a key that is thrown away."""
    context, scratch, words = _context(parameters), _Scratch(), 8 * parameters.degree
    key, plain, total = sealapi.KeyGenerator(context).secret_key(), sealapi.Plaintext(), sealapi.Ciphertext()
    fresh = scratch.dump(sealapi.Encryptor(context, key).encrypt_symmetric(plain))
    scratch.load(fresh, lambda path: total.load(context, path))
    objects = ((parameters.fresh, fresh, words), (parameters.sum, scratch.dump(total), 2 * words))
    return {
        size: Template.of(_inflate(whole, size), whole, numbers)
        for size, whole, numbers in (*objects, (parameters.key, scratch.dump(key), 2 * words))
    }


def _plain(data: bytes, size: FrameSize, parameters: BfvParameters, what: str) -> bytes:
    """The same object without compression, if every byte that could steer the library is the library's own.

    Raises:
        HostileInput: it is not.
    """
    check_frame(data, size, what)
    try:
        content = _inflate(data, size)
    except (OSError, ValueError) as error:
        raise HostileInput(f"A {what} cannot be decompressed.") from error
    return _templates(parameters)[size].check(content, what)


def _parse(data: bytes, parameters: BfvParameters, scratch: _Scratch, *, fresh: bool) -> Any:
    size = parameters.fresh if fresh else parameters.sum
    return _load(_plain(data, size, parameters, "fresh ciphertext" if fresh else "sum"), parameters, scratch)


def _load(whole: bytes, parameters: BfvParameters, scratch: _Scratch) -> Any:
    """Parse a ciphertext that is stored without compression and has the library's own bytes around its numbers."""
    context, ciphertext = _context(parameters), sealapi.Ciphertext()
    try:
        scratch.load(whole, lambda path: ciphertext.load(context, path))
        honest = (
            ciphertext.size() == 2
            and not ciphertext.is_transparent()
            and not ciphertext.is_ntt_form()  # SEAL loads that, and then adds no honest one to it
            and list(ciphertext.parms_id()) == list(context.first_parms_id())
        )
    except _PARSE_ERRORS as error:
        raise HostileInput("A ciphertext cannot be parsed under the study's parameters.") from error
    if not honest:
        raise HostileInput("A ciphertext does not have the shape that the study's parameters give.")
    return ciphertext


def _summands(data: bytes, parameters: BfvParameters) -> int:
    """How many seeds a sum in the short form holds; 0 if it has another form."""
    count, rest = divmod(len(data) - 8 * parameters.degree, SEED_BYTES)
    return count if not rest and 0 < count <= MAX_SEEDS else 0


class Adder:
    """Parses and adds ciphertexts; holds no secret key. Not thread-safe."""

    def __init__(self, parameters: BfvParameters) -> None:
        self.parameters = parameters
        self._evaluator = sealapi.Evaluator(_context(parameters))
        self._scratch = _Scratch()

    def parse(self, data: bytes) -> Any:
        """Parse one fresh ciphertext.

        Raises:
            HostileInput: anything but one fresh two-part ciphertext of exactly these parameters.
        """
        return _parse(data, self.parameters, self._scratch, fresh=True)

    def add(self, total: Any | None, ciphertext: Any) -> Any:
        """Return ``total + ciphertext``, in place where ``total`` is given."""
        if total is None:
            return ciphertext
        try:
            self._evaluator.add_inplace(total, ciphertext)
        except (ValueError, RuntimeError) as error:
            raise HostileInput("A ciphertext cannot be added to the others.") from error
        return total

    def seed(self, data: bytes) -> bytes:
        """The seed in a fresh ciphertext that was parsed."""
        return _inflate(data, self.parameters.fresh)[-SEED_BYTES:]

    def serialise(self, ciphertext: Any, seeds: Sequence[bytes] = ()) -> bytes:
        """The bytes of a sum; with the seeds of all its summands in the short form, if they are at most :data:`MAX_SEEDS`."""
        whole = self._scratch.dump(ciphertext)
        if not 0 < len(seeds) <= MAX_SEEDS:
            return whole
        start = len(_templates(self.parameters)[self.parameters.sum].head)
        first = _inflate(whole, self.parameters.sum)[start : start + 8 * self.parameters.degree]
        return b"".join([first, *seeds])


class SecretKey:
    """The study's BFV secret key, held by participants only. Its representation shows nothing. Not thread-safe."""

    def __init__(self, key: Any, parameters: BfvParameters) -> None:
        context = _context(parameters)
        self.parameters = parameters
        self._key = key
        self._encryptor = sealapi.Encryptor(context, key)
        self._decryptor = sealapi.Decryptor(context, key)
        self._encoder = sealapi.BatchEncoder(context)
        self._scratch = _Scratch()

    def __repr__(self) -> str:
        return f"SecretKey(degree={self.parameters.degree})"

    @classmethod
    def generate(cls, parameters: BfvParameters) -> SecretKey:
        """Make a fresh key from the library's generator, which the operating system seeds."""
        return cls(sealapi.KeyGenerator(_context(parameters)).secret_key(), parameters)

    @classmethod
    def parse(cls, data: bytes, parameters: BfvParameters) -> SecretKey:
        """Load a dealt key.

        Raises:
            HostileInput: not a key, or a key of other parameters.
        """
        whole = _plain(data, parameters.key, parameters, "dealt key")
        key = sealapi.SecretKey()
        try:
            _Scratch().load(whole, lambda path: key.load(_context(parameters), path))
            return cls(key, parameters)
        except _PARSE_ERRORS as error:
            raise HostileInput(
                "A dealt key cannot be parsed, or has different BFV parameters than the study's plan."
            ) from error

    def to_bytes(self) -> bytes:
        """Serialise the key, for a sealed box or the site's own store."""
        return self._scratch.dump(self._key)

    def encrypt(self, slots: Slots) -> bytes:
        """Encrypt (N,) slots below t and serialise the ciphertext in its short form."""
        plain = sealapi.Plaintext()
        self._encoder.encode(slots.tolist(), plain)
        return self._scratch.dump(self._encryptor.encrypt_symmetric(plain))

    def decrypt_sum(self, data: bytes, summands: int) -> Slots:
        """Decrypt a sum of so many fresh ciphertexts, as :meth:`decrypt` does, if it shows no more noise than theirs.

        Raises:
            HostileInput: not one sum of these parameters, or one with more noise: something else was added to it.
        """
        ciphertext = self._parse_sum(data)
        if _summands(data, self.parameters) not in (0, summands):
            raise HostileInput(f"A sum of {summands} contributions came with the seeds of another number.")
        try:
            budget = self._decryptor.invariant_noise_budget(ciphertext)
        except _PARSE_ERRORS as error:
            raise HostileInput("A ciphertext cannot be decrypted.") from error
        if budget < self.parameters.least_budget(summands):
            raise HostileInput(f"A sum holds more noise than {summands} contributions leave: it was changed in transit.")
        return self._decrypt(ciphertext)

    def decrypt(self, data: bytes) -> Slots:
        """Decrypt to (N,) slots below t, however much noise there is. Nothing of it may leave before its tags are checked.

        Raises:
            HostileInput: not one sum of these parameters.
        """
        return self._decrypt(self._parse_sum(data))

    def _parse_sum(self, data: bytes) -> Any:
        """Parse a sum: whole, or its first polynomial and the seeds whose expansions add up to the second."""
        parameters, count = self.parameters, _summands(data, self.parameters)
        if not count:
            return _parse(data, parameters, self._scratch, fresh=False)
        total, size = None, 8 * parameters.degree
        template, evaluator = _templates(parameters)[parameters.fresh], sealapi.Evaluator(_context(parameters))
        for start in range(size, len(data), SEED_BYTES):
            first = data[:size] if total is None else bytes(size)
            part = _load(template.fill(first, data[start : start + SEED_BYTES]), parameters, self._scratch)
            if total is None:
                total = part
            else:
                evaluator.add_inplace(total, part)
        return total

    def _decrypt(self, ciphertext: Any) -> Slots:
        plain = sealapi.Plaintext()
        try:
            self._decryptor.decrypt(ciphertext, plain)
            return np.array(self._encoder.decode_uint64(plain), dtype=np.uint64)
        except _PARSE_ERRORS as error:
            raise HostileInput("A ciphertext cannot be decrypted.") from error
