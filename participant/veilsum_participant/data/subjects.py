"""Tell subjects apart: give each person of a file a number, from the column that the site named for it.

Which column that is, what it holds and what counts as missing there is the site's own matter. A study's schema has no say in
it: a study that could declare one person's identifier missing would make each of that person's records a subject of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Bools
from veilsum_participant.data.typed import joined

BUCKETS = 1 << 16

NO_SUBJECT = ("", "?", "na", "n/a", "nan", "none", "null")
"""Texts that stand for a missing identifier, in any case of letters."""

_PASSED_OVER = ((r"[\p{Z}\p{C}\s]+", ""), (r"^([0-9]+)\.0+$", r"\1"), (r"(^|[^0-9])0+([0-9])", r"\1\2"))
"""What a reader passes over beside the case and the width of letters, as a regular expression and what is left of it: blanks
and what is invisible, decimals of a whole number that are zeros, and zeros before a number."""


def number_subjects(parts: Iterable[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Number the subjects from 0, in the order of their first records.

    Texts are compared as they are written: "7" and "007" are two persons; but not by how Unicode composes a letter, which
    nobody sees. A record without an identifier is a subject of its own and is numbered after all others.

    Args:
        parts: of text or numbers, as :class:`veilsum_participant.data.table.Table` holds them, one at least, of one type.

    Returns:
        The number of each record's subject (n,), and (n,) bool, True where the identifier is missing.
    """
    encoded = joined([told(part) for part in parts]).dictionary_encode()
    missing = np.asarray(pc.is_null(encoded.indices).to_numpy(zero_copy_only=False), dtype=np.bool_)
    numbers = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    numbers[missing] = len(encoded.dictionary) + np.arange(int(missing.sum()))
    return cast(NDArray[np.int64], numbers), missing


def bucket_subjects(identifiers: Any) -> NDArray[np.int64]:
    """A number below :data:`BUCKETS` for each record (n,), the same for all of a subject's; -1 where no identifier is."""
    encoded = told(identifiers).dictionary_encode()
    hashes = np.fromiter(map(hash, encoded.dictionary.to_pylist()), np.int64, len(encoded.dictionary)).view(np.uint64)
    buckets = (hashes * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(48)).astype(np.int64)  # Fibonacci hashing spreads integers
    places = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return cast(NDArray[np.int64], np.append(buckets, -1)[places])


def rounded(identifiers: Any) -> Bools:
    """Which identifiers (n,) are rounded, so that several persons may share one: as spreadsheets write long numbers, 1.2E+12,
    or beyond the whole numbers that floating point tells apart.
    """
    if pa.types.is_floating(identifiers.type):
        most = 2.0 ** (24 if pa.types.is_float32(identifiers.type) else 53)
        found = pc.greater_equal(pc.abs(identifiers), pa.scalar(most, identifiers.type))
    elif _are_texts(identifiers):
        found = pc.match_substring_regex(identifiers, r"^[0-9]([.,][0-9]+)?[eE]\+[0-9]+$")
    else:
        return np.zeros(len(identifiers), dtype=np.bool_)
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def spelled_alike(identifiers: Any) -> Bools:
    """Which texts (n,) differ from another one only by what a reader passes over (:data:`_PASSED_OVER`).

    Such texts are of several subjects, and may be of one person, who then counts several times.
    """
    if not _are_texts(identifiers):
        return np.zeros(len(identifiers), dtype=np.bool_)
    encoded = told(identifiers).dictionary_encode()
    read = pc.utf8_lower(pc.utf8_normalize(encoded.dictionary, form="NFKC"))
    for pattern, left in _PASSED_OVER:
        read = pc.replace_substring_regex(read, pattern, left)
    alike = read.dictionary_encode().indices.to_numpy()
    several = np.bincount(alike)[alike] > 1
    return cast(NDArray[np.bool_], np.append(several, False)[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)])


def _are_texts(identifiers: Any) -> bool:
    return bool(pa.types.is_string(identifiers.type) or pa.types.is_large_string(identifiers.type))


def told(identifiers: Any) -> Any:
    """Identifiers as they are compared, null where there is none."""
    if _are_texts(identifiers):
        identifiers = pc.utf8_normalize(pc.cast(identifiers, pa.large_string()), form="NFC")
        none = pa.array(NO_SUBJECT, pa.large_string())
        missing = pc.or_(pc.is_null(identifiers), pc.is_in(pc.utf8_lower(identifiers), value_set=none))
    else:
        if pa.types.is_float32(identifiers.type) or pa.types.is_float64(identifiers.type):
            identifiers = pc.add(identifiers, pa.scalar(0.0, identifiers.type))  # -0.0 is 0.0
        missing = pc.is_null(identifiers, nan_is_null=True)
    return pc.if_else(missing, pa.scalar(None, identifiers.type), identifiers)
