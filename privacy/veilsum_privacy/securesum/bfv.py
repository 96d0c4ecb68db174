"""BFV through TenSEAL, held to what this protocol needs: encrypt, add, decrypt, and nothing that loads what it is given.

TenSEAL parses empty and foreign input without complaint and its compressed ciphertexts could inflate without bound, so bytes
are checked before they are parsed and the parsed object after. Every exception from the library becomes a typed error. This
module knows nothing of masks, lanes or cohorts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tenseal as ts
from numpy.typing import NDArray

from veilsum_privacy.errors import HostileInput
from veilsum_privacy.securesum.parameters import BfvParameters

Slots = NDArray[np.uint64]

MAX_KEY_BYTES = 1 << 18
_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
_WRAPPER = 8  # TenSEAL's two tags, number of slots and length before SEAL's own header
_SEAL_HEADER = 16
_SEAL_ZSTD = 2
_METADATA = 128  # an honest ciphertext inflates to 97 bytes and two polynomials of 8-byte coefficients
_MAX_BLOCKS = 4  # a block inflates to at most 128 KiB; an honest ciphertext has one or two


def _fresh_context(parameters: BfvParameters) -> Any:
    return ts.context(
        ts.SCHEME_TYPE.BFV,
        parameters.degree,
        parameters.plain_modulus,
        list(parameters.prime_bits),
        encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC,
        n_threads=1,
    )


def _parameters_id(context: Any) -> list[int]:
    return list(context.seal_context().data.key_parms_id())


def _asymmetric(context: Any) -> bool:
    """Whether the context encrypts with a public key; the library answers that question for no other kind."""
    try:
        context.has_public_key()
    except ValueError:
        return False
    return True


def _dump(context: Any, *, secret: bool) -> bytes:
    return bytes(
        context.serialize(save_public_key=False, save_secret_key=secret, save_galois_keys=False, save_relin_keys=False)
    )


def check_frame(data: bytes, parameters: BfvParameters) -> None:
    """Check a serialised ciphertext's length and walk its compressed blocks, without inflating anything.

    Raises:
        HostileInput: wrong length, not the expected wrapper, or more blocks than an honest ciphertext has.
    """
    least, largest = parameters.ciphertext_bytes
    if not least <= len(data) <= largest:
        raise HostileInput(f"A ciphertext of {len(data)} bytes is outside the {least} to {largest} of its parameters.")
    rest, slots = len(data) - _WRAPPER, parameters.degree
    length = bytes([rest & 0x7F | 0x80, rest >> 7 & 0x7F | 0x80, rest >> 14])
    wrapper = bytes([0x0A, 0x02, slots & 0x7F | 0x80, slots >> 7, 0x12]) + length
    prefix = data[_WRAPPER : _WRAPPER + _SEAL_HEADER]
    start = _WRAPPER + _SEAL_HEADER
    # Every byte that steers the library's parser is pinned, so that the frame walked here is the one that it will inflate:
    # no other compression mode, no skippable frame before it, no size or window beyond one ciphertext.
    if (
        not data.startswith(wrapper)
        or prefix[:3] != b"\x5e\xa1\x10"
        or prefix[5:8] != bytes([_SEAL_ZSTD, 0, 0])
        or int.from_bytes(prefix[8:], "little") != rest
        or data[start : start + 4] != _ZSTD_MAGIC
    ):
        raise HostileInput("A ciphertext does not start as one ciphertext of the study's parameters does.")
    descriptor = data[start + 4]
    width = (1, 2, 4, 8)[descriptor >> 6]
    content = int.from_bytes(data[start + 5 : start + 5 + width], "little") + (256 if width == 2 else 0)
    if not descriptor & 0x20 or descriptor & 3 or not 0 < content <= 16 * slots + _METADATA:
        raise HostileInput("A ciphertext's compressed frame does not state the size of one ciphertext.")
    position = start + 5 + width
    for _ in range(_MAX_BLOCKS):
        header = int.from_bytes(data[position : position + 3], "little")
        kind, size = header >> 1 & 3, header >> 3
        position += 3 + (1 if kind == 1 else size)
        if position > len(data):
            break
        if header & 1:
            if position + 4 * (descriptor >> 2 & 1) == len(data):
                return
            break
    raise HostileInput("A ciphertext's compressed frame is truncated, padded or split into too many blocks.")


class Adder:
    """Parses and adds ciphertexts; holds no secret key. Not thread-safe."""

    def __init__(self, parameters: BfvParameters) -> None:
        self.parameters = parameters
        self._context = ts.context_from(_dump(_fresh_context(parameters), secret=False), n_threads=1)

    def parse(self, data: bytes) -> Any:
        """Parse one ciphertext.

        Raises:
            HostileInput: anything but one two-part ciphertext of exactly these parameters.
        """
        return _parse(self._context, data, self.parameters)

    def add(self, total: Any | None, ciphertext: Any) -> Any:
        """Return ``total + ciphertext``, in place where ``total`` is given."""
        if total is None:
            return ciphertext
        try:
            total += ciphertext
        except (ValueError, RuntimeError) as error:
            raise HostileInput("A ciphertext cannot be added to the others.") from error
        return total

    @staticmethod
    def serialise(ciphertext: Any) -> bytes:
        """The bytes of a ciphertext or of a sum."""
        return bytes(ciphertext.serialize())


def _parse(context: Any, data: bytes, parameters: BfvParameters) -> Any:
    check_frame(data, parameters)
    try:
        vector = ts.bfv_vector_from(context, data)
        parts = vector.ciphertext()
        honest = (
            vector.size() == parameters.degree
            and len(parts) == 1
            and parts[0].size() == 2
            and not parts[0].is_transparent()
            and list(parts[0].parms_id()) == list(context.seal_context().data.first_parms_id())
        )
    except (ValueError, RuntimeError, TypeError, IndexError, MemoryError, OverflowError) as error:
        raise HostileInput("A ciphertext cannot be parsed under the study's parameters.") from error
    if not honest:
        raise HostileInput("A ciphertext has another shape than one fresh ciphertext of the study's parameters.")
    return vector


class SecretKey:
    """The study's BFV secret key, held by participants only. Its representation shows nothing."""

    def __init__(self, context: Any, parameters: BfvParameters) -> None:
        self._context = context
        self.parameters = parameters

    def __repr__(self) -> str:
        return f"SecretKey(degree={self.parameters.degree})"

    @classmethod
    def generate(cls, parameters: BfvParameters) -> SecretKey:
        """Make a fresh key from the library's generator, which the operating system seeds."""
        return cls(_fresh_context(parameters), parameters)

    @classmethod
    def parse(cls, data: bytes, parameters: BfvParameters) -> SecretKey:
        """Load a dealt key.

        Raises:
            HostileInput: not a key, or a key of other parameters.
        """
        if not 0 < len(data) <= MAX_KEY_BYTES:
            raise HostileInput("A dealt key is empty or larger than a key can be.")
        try:
            context = ts.context_from(data, n_threads=1)
            if not context.has_secret_key() or context.has_galois_keys() or context.has_relin_keys() or _asymmetric(context):
                raise HostileInput("A dealt key holds other keys than one secret key.")
            expected = _parameters_id(_fresh_context(parameters))
            found = _parameters_id(context)
        except (ValueError, RuntimeError, TypeError, MemoryError, OverflowError) as error:
            raise HostileInput("A dealt key cannot be parsed.") from error
        if found != expected:
            raise HostileInput("A dealt key has other BFV parameters than the study's plan.")
        return cls(context, parameters)

    def to_bytes(self) -> bytes:
        """Serialise the key, for a sealed box or the site's own store."""
        return _dump(self._context, secret=True)

    def encrypt(self, slots: Slots) -> bytes:
        """Encrypt (N,) slots below t and serialise the ciphertext."""
        # ts.bfv_vector copies the slots twice more on the way to the same call, for half as much time again
        return bytes(ts._ts_cpp.BFVVector(self._context.data, slots.astype(np.int64).tolist()).serialize())

    def decrypt(self, data: bytes) -> Slots:
        """Decrypt one ciphertext to (N,) slots below t. Nothing of it may leave before its tags are checked.

        Raises:
            HostileInput: not one ciphertext of these parameters.
        """
        vector = _parse(self._context, data, self.parameters)
        try:
            values: Sequence[int] = vector.decrypt()
        except (ValueError, RuntimeError) as error:
            raise HostileInput("A ciphertext cannot be decrypted.") from error
        return np.asarray(values, dtype=np.int64).__mod__(self.parameters.plain_modulus).astype(np.uint64)
