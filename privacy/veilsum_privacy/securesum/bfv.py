"""BFV through TenSEAL, held to what this protocol needs: encrypt, add, decrypt, and nothing that loads what it is given.

A slot is a coefficient of the plaintext polynomial. A ciphertext is a pair (c0, c1) of which the second is expanded from a
seed, so the seed travels in its place, and of the first only the coefficients of the slots in use: decryption needs no others,
and leaving them out shows nobody more (decision 69). A sum of few is alike: its coefficients, and the seed of every summand. A
larger sum has the second polynomial in place of seeds.

TenSEAL ships SEAL's own interface (``tenseal.sealapi``) beside its vectors. It is used here because it alone tells the seed.
The library's parser ends the process on some malformed bytes (an exception leaves where none may). So it is given nothing but
its own words: around the numbers that came, which are checked here, stands what the library itself writes. Every exception
from it becomes a typed error. This module knows nothing of masks, lanes or cohorts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from veilsum_node.errors import HostileInput, StateError
from veilsum_privacy.securesum.frames import (
    SEED_BYTES,
    Template,
    check_frame,
    numbers_from_bytes,
    numbers_to_bytes,
    stated_size,
)
from veilsum_privacy.securesum.parameters import MAX_SEEDS, BfvParameters

Slots = NDArray[np.uint64]

_PARSE_ERRORS = (ValueError, RuntimeError, TypeError, IndexError, MemoryError, OverflowError)

_PHASE_ERROR = 2
"""By how much a phase may differ from what it is: it is c0 + c1 s as a fraction of q - 1, rounded, and not of q."""


@lru_cache(maxsize=8)
def _context(parameters: BfvParameters, plain_modulus: int) -> Any:
    """SEAL's context; it refuses parameters below 128-bit security."""
    values = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.BFV)
    values.set_poly_modulus_degree(parameters.degree)
    values.set_coeff_modulus(sealapi.CoeffModulus.Create(parameters.degree, list(parameters.prime_bits)))
    values.set_plain_modulus(plain_modulus)
    context = sealapi.SEALContext(values, True, sealapi.SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        raise StateError(f"SEAL refuses the parameters: {context.parameters_error_message()}.")
    return context


def _encryption(parameters: BfvParameters) -> Any:
    """The context in which keys are made and slots are encrypted."""
    return _context(parameters, parameters.plain_modulus)


def _phases(parameters: BfvParameters) -> Any:
    """A context in which the same ciphertexts decrypt to their phase c0 + c1 s itself: its plain modulus is q - 1."""
    return _context(parameters, parameters.prime - 1)


class Scratch:
    """A file in memory: the library's Python interface saves to and loads from named files only.

    It is open for one object only: who adds up a round may be kept for as long as its study.
    """

    def dump(self, item: Any) -> bytes:
        """The bytes of an object that saves itself."""
        with _memory_file() as file:
            item.save(f"/proc/self/fd/{file}")
            return os.pread(file, os.fstat(file).st_size, 0)

    def content(self, item: Any) -> bytes:
        """What is inside the frame of an object that saves itself."""
        return inflate(self.dump(item))

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


def inflate(data: bytes) -> bytes:
    """What is inside the frame of an object that this library wrote, or that was checked by :func:`check_frame`."""
    import pyarrow  # large, and a coordinator of few participants inflates nothing

    return bytes(pyarrow.decompress(memoryview(data)[16:], decompressed_size=stated_size(data), codec="zstd", asbytes=True))


@lru_cache(maxsize=8)
def _templates(parameters: BfvParameters, plain_modulus: int) -> dict[str, Template]:
    """What this library writes around the numbers of a fresh ciphertext, a whole one, a plaintext and a key."""
    context, scratch, words = _context(parameters, plain_modulus), Scratch(), 8 * parameters.degree
    key, whole = sealapi.KeyGenerator(context).secret_key(), sealapi.Ciphertext()  # of a key that is thrown away
    encryptor = sealapi.Encryptor(context, key)
    encryptor.encrypt_symmetric(sealapi.Plaintext(), whole)
    objects = {
        "fresh": (encryptor.encrypt_symmetric(sealapi.Plaintext()), words),
        "whole": (whole, 2 * words),
        "plain": (sealapi.Plaintext(f"1x^{parameters.degree - 1}"), words),
        "key": (key, 2 * words),
    }
    dumped = {kind: (scratch.dump(item), numbers) for kind, (item, numbers) in objects.items()}
    return {kind: Template.of(inflate(data), data, numbers) for kind, (data, numbers) in dumped.items()}


def _coefficients(data: bytes, parameters: BfvParameters, what: str) -> Slots:
    """Coefficients as they travel.

    Raises:
        HostileInput: one is not below q.
    """
    numbers = numbers_from_bytes(data, parameters.coefficient_bytes)
    if (numbers >= parameters.prime).any():
        raise HostileInput(f"A coefficient of a {what} is not below the prime of the study's parameters.")
    return numbers


class _Expander:
    """Ciphertexts in the library's own form, of numbers that were checked. Not thread-safe."""

    def __init__(self, parameters: BfvParameters) -> None:
        self.parameters = parameters
        self.context = _phases(parameters)
        self._evaluator = sealapi.Evaluator(self.context)
        self._templates = _templates(parameters, parameters.prime - 1)
        self._scratch = Scratch()

    def seeded(self, first: Slots, seed: bytes) -> Any:
        """A ciphertext of its first polynomial, whose further coefficients are 0, and the seed of its second."""
        return self._load(self._templates["fresh"].fill(self._padded(first), seed))

    def whole(self, first: Slots, second: Slots) -> Any:
        """A ciphertext of its first polynomial, whose further coefficients are 0, and its second."""
        return self._load(self._templates["whole"].fill(self._padded(first) + second.tobytes()))

    def second(self, ciphertext: Any) -> Slots:
        """The second polynomial of a ciphertext."""
        numbers = self._scratch.content(ciphertext)[-8 * self.parameters.degree :]
        return np.frombuffer(numbers, dtype="<u8")

    def add(self, total: Any, part: Any) -> None:
        """Add to a ciphertext in place."""
        self._evaluator.add_inplace(total, part)

    def _padded(self, first: Slots) -> bytes:
        return first.tobytes() + bytes(8 * (self.parameters.degree - len(first)))

    def _load(self, data: bytes) -> Any:
        ciphertext = sealapi.Ciphertext()
        try:
            self._scratch.load(data, lambda path: ciphertext.load(self.context, path))
        except _PARSE_ERRORS as error:
            raise HostileInput("A ciphertext cannot be parsed under the study's parameters.") from error
        return ciphertext


class Adder:
    """The running sum of one place's ciphertexts; holds no secret key. Not thread-safe.

    Args:
        parameters: of all of them.
        slots: how many each of them has.
        summands: how many there will be.
        place: where the sum is held as it travels, ``parameters.sum_bytes(slots, summands)`` zero bytes; None for its own.
    """

    def __init__(self, parameters: BfvParameters, slots: int, summands: int, place: memoryview | None = None) -> None:
        self._parameters, self._slots, self._added = parameters, slots, 0
        self._sum = memoryview(bytearray(parameters.sum_bytes(slots, summands))) if place is None else place
        self._start = slots * parameters.coefficient_bytes  # of what follows the coefficients
        self._expander = _Expander(parameters) if summands > MAX_SEEDS else None
        self._second: Any | None = None

    def add(self, data: bytes) -> None:
        """Add one fresh ciphertext.

        Raises:
            HostileInput: anything but one fresh ciphertext of these parameters and slots; the sum is what it was.
        """
        parameters = self._parameters
        if len(data) != parameters.fresh_bytes(self._slots):
            raise HostileInput(f"A ciphertext of {self._slots} slots has {len(data)} bytes.")
        first, seed = _coefficients(data[:-SEED_BYTES], parameters, "ciphertext"), data[-SEED_BYTES:]
        if self._expander is None:
            self._sum[self._start + SEED_BYTES * self._added :][:SEED_BYTES] = seed
        else:
            part = self._expander.seeded(first[:0], seed)
            if self._second is None:
                self._second = part
            else:
                self._expander.add(self._second, part)
        total = first + numbers_from_bytes(self._sum[: self._start], parameters.coefficient_bytes)  # below 2^61
        self._sum[: self._start] = numbers_to_bytes(total % np.uint64(parameters.prime), parameters.coefficient_bytes)
        self._added += 1

    def to_bytes(self) -> bytes:
        """The sum as it travels: its coefficients, then the seeds of all summands or, of too many, the second polynomial."""
        return bytes(self.view())

    def view(self) -> memoryview:
        """The same where it was added up, not copied: nothing may be added any more."""
        if self._expander is None:
            return self._sum[: self._start + SEED_BYTES * self._added]
        if self._second is not None:
            self._sum[self._start :] = numbers_to_bytes(
                self._expander.second(self._second), self._parameters.coefficient_bytes
            )
        return self._sum


class SecretKey:
    """The study's BFV secret key, held by participants only. Its representation shows nothing. Not thread-safe."""

    def __init__(self, key: Any, parameters: BfvParameters) -> None:
        context = _encryption(parameters)
        self.parameters = parameters
        self._key = key
        self._encryptor = sealapi.Encryptor(context, key)
        self._scratch, self._expander = Scratch(), _Expander(parameters)
        self._own = _templates(parameters, parameters.plain_modulus)
        self._decryptor = sealapi.Decryptor(self._expander.context, self._for_phases())

    def __repr__(self) -> str:
        return f"SecretKey(degree={self.parameters.degree})"

    @classmethod
    def generate(cls, parameters: BfvParameters) -> SecretKey:
        """Make a fresh key from the library's generator, which the operating system seeds."""
        return cls(sealapi.KeyGenerator(_encryption(parameters)).secret_key(), parameters)

    @classmethod
    def parse(cls, data: bytes, parameters: BfvParameters) -> SecretKey:
        """Load a dealt key.

        Raises:
            HostileInput: not a key, or a key of other parameters.
        """
        check_frame(data, parameters.key, "dealt key")
        try:
            content = inflate(data)
        except (OSError, ValueError) as error:
            raise HostileInput("A dealt key cannot be decompressed.") from error
        whole = _templates(parameters, parameters.plain_modulus)["key"].check(content, "dealt key")
        key = sealapi.SecretKey()
        try:
            Scratch().load(whole, lambda path: key.load(_encryption(parameters), path))
            return cls(key, parameters)
        except _PARSE_ERRORS as error:
            raise HostileInput(
                "A dealt key cannot be parsed, or has different BFV parameters than the study's plan."
            ) from error

    def to_bytes(self) -> bytes:
        """Serialise the key, for a sealed box or the site's own store."""
        return self._scratch.dump(self._key)

    def _for_phases(self) -> Any:
        """The same key in the context of phases; the library binds every object to a context."""
        key, numbers = sealapi.SecretKey(), self._scratch.content(self._key)[len(self._own["key"].head) :]
        whole = _templates(self.parameters, self.parameters.prime - 1)["key"].fill(numbers)
        self._scratch.load(whole, lambda path: key.load(self._expander.context, path))
        return key

    def encrypt(self, slots: Slots) -> bytes:
        """Encrypt (n,) slots below t, n at most N, and serialise what is needed of the ciphertext."""
        parameters, plain = self.parameters, sealapi.Plaintext()
        numbers = slots.astype("<u8", copy=False).tobytes() + bytes(8 * (parameters.degree - len(slots)))
        self._scratch.load(self._own["plain"].fill(numbers), lambda path: plain.load(_encryption(parameters), path))
        content, start = self._scratch.content(self._encryptor.encrypt_symmetric(plain)), len(self._own["fresh"].head)
        first = np.frombuffer(content, dtype="<u8", count=len(slots), offset=start)
        return numbers_to_bytes(first, parameters.coefficient_bytes) + content[-SEED_BYTES:]

    def decrypt_sum(self, data: bytes, slots: int, summands: int) -> Slots:
        """Decrypt a sum of so many fresh ciphertexts of so many slots, if it shows no more noise than theirs.

        Raises:
            HostileInput: not one sum of these parameters, or one with more noise: something else was added to it.
        """
        parameters = self.parameters
        words, noise = self._open(data, slots, summands)
        if np.abs(noise).max() > (parameters.most_noise(summands) + _PHASE_ERROR) * parameters.plain_modulus:
            raise HostileInput(f"A sum holds more noise than {summands} contributions leave: it was changed in transit.")
        return words

    def decrypt(self, data: bytes, slots: int, summands: int) -> Slots:
        """Decrypt to (slots,) below t, however much noise there is. Nothing of it may leave before its tags are checked.

        Raises:
            HostileInput: not one sum of these parameters.
        """
        return self._open(data, slots, summands)[0]

    def _open(self, data: bytes, slots: int, summands: int) -> tuple[Slots, NDArray[np.int64]]:
        """The words of a sum, and t times the noise in each: what is left of the phase once q m / t is taken off."""
        prime, modulus = self.parameters.prime, self.parameters.plain_modulus
        phase = self._phase(data, slots, summands)
        # Exact: a float64 has 53 bits for a quotient of 48, and the rest is less than 2^60 either way, so 64 bits hold it.
        words = np.rint(phase.astype(np.float64) * (modulus / prime)).astype(np.uint64)
        noise = (phase * np.uint64(modulus) - words * np.uint64(prime)).view(np.int64)
        return words % np.uint64(modulus), noise

    def _phase(self, data: bytes, slots: int, summands: int) -> Slots:
        """c0 + c1 s mod q, the first ``slots`` coefficients, to within :data:`_PHASE_ERROR`."""
        parameters, expander = self.parameters, self._expander
        if len(data) != parameters.sum_bytes(slots, summands):
            raise HostileInput(f"A sum of {summands} contributions of {slots} slots has {len(data)} bytes.")
        size = slots * parameters.coefficient_bytes
        first = _coefficients(data[:size], parameters, "sum")
        if summands > MAX_SEEDS:
            total = expander.whole(first, _coefficients(data[size:], parameters, "sum"))
        else:
            total = expander.seeded(first, data[size : size + SEED_BYTES])
            for start in range(size + SEED_BYTES, len(data), SEED_BYTES):
                expander.add(total, expander.seeded(first[:0], data[start : start + SEED_BYTES]))
        plain = sealapi.Plaintext()
        try:
            self._decryptor.decrypt(total, plain)
            content = self._scratch.content(plain)
        except _PARSE_ERRORS as error:
            raise HostileInput("A ciphertext cannot be decrypted.") from error
        found = np.frombuffer(content, dtype="<u8", offset=len(self._own["plain"].head))[:slots]
        phase = np.zeros(slots, dtype=np.uint64)
        phase[: len(found)] = found
        return phase
