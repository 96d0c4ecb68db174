"""BFV through TenSEAL, held to what this protocol needs: encrypt, add, decrypt, and nothing that loads what it is given.

TenSEAL ships SEAL's own interface (``tenseal.sealapi``) beside its vectors. It is used here because it alone gives the short
form of a fresh symmetric ciphertext: of the pair (c0, c1) the second is expanded from a seed, so the seed travels in its
place, at half the bytes. Sums have no seed and travel whole. Bytes are checked before they are parsed and the parsed object
after; every exception from the library becomes a typed error. This module knows nothing of masks, lanes or cohorts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from veilsum_privacy.errors import HostileInput, StateError
from veilsum_privacy.securesum.frames import check_frame
from veilsum_privacy.securesum.parameters import BfvParameters

Slots = NDArray[np.uint64]

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
    """A file in memory: the library's Python interface saves to and loads from named files only."""

    def __init__(self) -> None:
        try:
            self._file = os.memfd_create("veilsum", os.MFD_CLOEXEC)
        except (AttributeError, OSError) as error:
            raise StateError("This system has no files in memory.", "veilsum runs on Linux.") from error
        self._path = f"/proc/self/fd/{self._file}"

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def dump(self, item: Any) -> bytes:
        """The bytes of an object that saves itself."""
        try:
            item.save(self._path)
            return os.pread(self._file, os.fstat(self._file).st_size, 0)
        finally:
            os.ftruncate(self._file, 0)

    def load(self, data: bytes, read: Callable[[str], None]) -> None:
        """Let ``read`` load an object from a file that holds ``data``."""
        try:
            os.pwrite(self._file, data, 0)
            read(self._path)
        finally:
            os.ftruncate(self._file, 0)


def _parse(data: bytes, parameters: BfvParameters, scratch: _Scratch, *, fresh: bool) -> Any:
    size = parameters.fresh if fresh else parameters.sum
    check_frame(data, size, "fresh ciphertext" if fresh else "sum")
    context, ciphertext = _context(parameters), sealapi.Ciphertext()
    try:
        scratch.load(data, lambda path: ciphertext.load(context, path))
        honest = (
            ciphertext.size() == 2
            and not ciphertext.is_transparent()
            and not ciphertext.is_ntt_form()  # SEAL loads that, and then adds no honest one to it
            and list(ciphertext.parms_id()) == list(context.first_parms_id())
        )
    except _PARSE_ERRORS as error:
        raise HostileInput("A ciphertext cannot be parsed under the study's parameters.") from error
    if not honest:
        raise HostileInput("A ciphertext has another shape than one of the study's parameters.")
    return ciphertext


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

    def serialise(self, ciphertext: Any) -> bytes:
        """The bytes of a sum."""
        return self._scratch.dump(ciphertext)


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
        check_frame(data, parameters.key, "dealt key")
        key = sealapi.SecretKey()
        try:
            _Scratch().load(data, lambda path: key.load(_context(parameters), path))
            return cls(key, parameters)
        except _PARSE_ERRORS as error:
            raise HostileInput("A dealt key cannot be parsed, or is of other BFV parameters than the study's plan.") from error

    def to_bytes(self) -> bytes:
        """Serialise the key, for a sealed box or the site's own store."""
        return self._scratch.dump(self._key)

    def encrypt(self, slots: Slots) -> bytes:
        """Encrypt (N,) slots below t and serialise the ciphertext in its short form."""
        plain = sealapi.Plaintext()
        self._encoder.encode(slots.tolist(), plain)
        return self._scratch.dump(self._encryptor.encrypt_symmetric(plain))

    def decrypt(self, data: bytes) -> Slots:
        """Decrypt a sum to (N,) slots below t. Nothing of it may leave before its tags are checked.

        Raises:
            HostileInput: not one sum of these parameters.
        """
        ciphertext, plain = _parse(data, self.parameters, self._scratch, fresh=False), sealapi.Plaintext()
        try:
            self._decryptor.decrypt(ciphertext, plain)
            return np.array(self._encoder.decode_uint64(plain), dtype=np.uint64)
        except _PARSE_ERRORS as error:
            raise HostileInput("A ciphertext cannot be decrypted.") from error
