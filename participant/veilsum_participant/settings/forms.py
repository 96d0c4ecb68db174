"""How a dataset's files are written, and what their names tell of them; nothing here says where one lies."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

_CSV_URL = re.compile(r"\.(csv|tsv|txt)(\.(gz|bz2|xz|zst))?$", re.IGNORECASE)


@dataclass(frozen=True)
class Dialect:
    """How a file of text is written, as its owner declares.

    Attributes:
        delimiter: what separates the cells of a CSV file's line.
        decimal: the mark between a number's whole and its decimal places, "." or ",".
        encoding: of its characters, one of :data:`ENCODINGS`.
        compression: of its bytes, one of :data:`COMPRESSIONS`; empty for none.
    """

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    compression: str = ""


PLAIN = Dialect()
"""UTF-8 with commas and points, and not compressed; a line that is not UTF-8 is Latin-1."""

ENCODINGS = (
    *("utf-8", "utf-16", "utf-16-le", "utf-16-be", "ascii", "latin-1", "cp1250", "cp1251", "cp1252", "cp1253"),
    *("cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp437", "cp850", "cp852", "cp866", "iso8859-2", "iso8859-5"),
    *("iso8859-7", "iso8859-8", "iso8859-9", "iso8859-15", "koi8-r", "koi8-u", "mac-roman", "gb18030", "gbk", "big5"),
    *("cp932", "shift_jis", "euc-jp", "cp949", "euc-kr"),
)
"""Encodings in which no character, broken or not, reaches beyond its line."""

COMPRESSIONS = ("gzip", "bzip2", "xz", "zstd")

_PACKED = dict(zip((".gz", ".bz2", ".xz", ".zst"), COMPRESSIONS, strict=True))


PARQUET = (".parquet", ".pq")
"""Suffixes of Parquet files."""


def csv_path(path: Path) -> bool:
    """Whether a file counts as CSV: all but Parquet and npz files do, by their suffix; a folder holds Parquet."""
    return is_text(path) and not path.is_dir()


def csv_url(url: str) -> bool:
    """Whether a URL in S3 names one object of CSV, compressed perhaps."""
    return _CSV_URL.search(url) is not None and not any(letter in url for letter in "*?[")


def npz_path(path: Path) -> bool:
    """Whether a file is an archive of NumPy's arrays."""
    return path.suffix.lower() == ".npz"


def is_text(path: Path) -> bool:
    """Whether a file is of text, by its name alone."""
    return path.suffix.lower() not in PARQUET and not npz_path(path)


def token_names(sha256: str, length: int) -> list[str]:
    """Names of the columns of a text's tokens, in order: with the beginning of the tokenizer's hash, so that sites which have
    different ones offer different columns."""
    return [f"token{place}_{sha256[:8]}" for place in range(length)]


def pixel_names(shape: tuple[int, int, int]) -> list[str]:
    """Names of the columns of an image's pixels, ``pixel0`` first; the last axis runs fastest."""
    return [f"pixel{place}" for place in range(math.prod(shape))]


def is_json(path: Path) -> bool:
    """Whether a file of a name, or a glob of several, holds JSON."""
    return is_document(path) or _suffix(path) in (".ndjson", ".jsonl")


def is_document(path: Path) -> bool:
    """Whether a file holds one JSON document, in any number of lines."""
    return _suffix(path) == ".json"


def _suffix(path: Path) -> str:
    """The last suffix, before that of a compression."""
    return (path.with_suffix("") if compression_named(path) else path).suffix.lower()


def compression_named(path: Path) -> str:
    """The compression that a file's name tells by its last suffix; empty where it tells none."""
    return _PACKED.get(path.suffix.lower(), "")
