"""Mutants that survive and do no harm, each with the reason. A name holds the changed code: where that changes, look again."""

from __future__ import annotations

_SECURESUM = "privacy/veilsum_privacy/securesum"
_LENGTH = "numpy takes any negative length for what is left"
_ORDER = "UTF-8 keeps the order of code points, which is that of strings"
_BUFFER = "bytes() around it makes the same of a buffer, with one copy more"
_COPY = "a copy has the same bytes"
_JSON = "strings, numbers, lists and mappings only, whose canonical form is the same either way"

HARMLESS: dict[str, str] = {
    f"{_SECURESUM}/agreed.py::AgreedTask.kept_part: 1 -> 2": _LENGTH,
    (
        f"{_SECURESUM}/agreed.py::AgreedTask.digest: self.declaration.model_dump(mode='json') -> self.declaration.model_dump()"
    ): _JSON,
    (f"{_SECURESUM}/agreed.py::AgreedTask.digest: study.data.model_dump(mode='json') -> study.data.model_dump()"): _JSON,
    f"{_SECURESUM}/bfv.py::_context: True -> False": (
        "two primes leave one level for ciphertexts: there is no chain of further ones to prepare"
    ),
    (
        f"{_SECURESUM}/bfv.py::_inflate: pyarrow.decompress(memoryview(data)[16:], "
        "decompressed_size=size.content, codec='zstd', asbytes=True) -> "
        "pyarrow.decompress(memoryview(data)[16:], decompressed_size=size.content, "
        "codec='zstd')"
    ): _BUFFER,
    f"{_SECURESUM}/bfv.py::_inflate: True -> False": _BUFFER,
    f"{_SECURESUM}/boxes.py::pair_seed: sorted(shares, key=str.encode) -> sorted(shares)": _ORDER,
    f"{_SECURESUM}/context.py::in_range: 0.0 -> 1.0": "the largest of an array is compared with a bound far above 1",
    f"{_SECURESUM}/contribution.py::_packed: 1 -> 2": _LENGTH,
    f"{_SECURESUM}/contribution.py::open_sum: 1 -> 2 (5)": _LENGTH,
    (
        f"{_SECURESUM}/decryption.py::words_digest: part.astype(np.dtype('<u8'), copy=False) -> part.astype(np.dtype('<u8'))"
    ): _COPY,
    f"{_SECURESUM}/decryption.py::words_digest: False -> True": _COPY,
    f"{_SECURESUM}/frames.py::check_frame: 32 -> 33": "a descriptor with the lowest bit set is refused by the next operand",
    f"{_SECURESUM}/frames.py::check_frame: break -> pass": (
        "behind the end of the data no header says that its block is the last, nor is the end met again"
    ),
    (
        f"{_SECURESUM}/masks.py::derive: HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=bound) "
        "-> HKDF(algorithm=hashes.SHA256(), length=32, info=bound)"
    ): "no salt is the library's default",
    (
        f"{_SECURESUM}/parameters.py::BfvParameters.least_budget: math.floor(NOISE_SIGMAS_SQUARED * "
        "NOISE_VARIANCE * summands) -> math.ceil(NOISE_SIGMAS_SQUARED * NOISE_VARIANCE * "
        "summands)"
    ): "96 * 127 / 12 is a whole number",
    f"{_SECURESUM}/parameters.py::plan_encoding: packed >= parameters.plain_modulus -> packed > parameters.plain_modulus": (
        "a sum of even numbers is never the modulus, which is odd"
    ),
    f"{_SECURESUM}/roster.py::verify_roster: sorted(set(names), key=str.encode) -> sorted(set(names))": _ORDER,
    (
        f"{_SECURESUM}/tags.py::TagKey.check: compare_digest(expected, found) -> compare_digest(found, expected)"
    ): "whether two are equal does not depend on which is first",
}
