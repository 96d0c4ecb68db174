"""What a file of text looks like where it is not as its owner declares: words for the owner, of a closed list."""

from __future__ import annotations

from veilsum_participant.settings.forms import PLAIN, Dialect

HEAD = 1 << 16
"""Bytes of a file that are looked at."""

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_MAGIC = (
    *((magic, f'It is compressed: state compression = "{name}".') for magic, name in _COMPRESSED.items()),
    (b"PK\x03\x04", "It is a ZIP archive, as spreadsheets are: save it as CSV."),
    (b"\xd0\xcf\x11\xe0", "It is a spreadsheet: save it as CSV."),
    (b"PAR1", "It is a Parquet file: end its name in .parquet."),
)
_WIDE = (b"\xff\xfe", b"\xfe\xff")
_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}


def advice(head: bytes, line: bytes, dialect: Dialect) -> str:
    """What to declare of a file, by its first bytes and its first line; empty where nothing stands out.

    Args:
        head: bytes as they are stored, :data:`HEAD` at most.
        line: as it is read, in UTF-8.
        dialect: as declared.
    """
    if not dialect.compression and (found := next((told for magic, told in _MAGIC if head.startswith(magic)), "")):
        return found
    if not dialect.compression and dialect.encoding == PLAIN.encoding and (encoding := encoding_of(head)):
        return f'Its characters take several bytes each: state encoding = "{encoding}".'
    text = line.decode(errors="replace").strip()
    if text.lower().startswith("sep=") and len(text) == 5:
        return "Its first line states the delimiter, as spreadsheets have it: remove that line, and state `delimiter`."
    if text.startswith("#"):
        return "Its first line is a comment: remove it."
    if dialect.delimiter in text:
        return ""
    most = max(_DELIMITERS, key=text.count)
    if not text.count(most):
        return ""
    stated = most.replace("\t", "\\t")
    return f'Cells of its first line are separated by {_DELIMITERS[most]}: state delimiter = "{stated}".'


def compression_of(head: bytes) -> str:
    """The compression that a file's first bytes tell; empty where they tell none."""
    return next((name for magic, name in _COMPRESSED.items() if head.startswith(magic)), "")


def encoding_of(head: bytes) -> str:
    """The encoding of several bytes a character that a text's first bytes tell; empty where they tell none."""
    if head.startswith(_WIDE):
        return "utf-16"
    some = head[: len(head) & ~1]
    for start, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        if some and 2 * some[start::2].count(0) > len(some) // 2 > 2 * some[1 - start :: 2].count(0):
            return encoding
    return ""
