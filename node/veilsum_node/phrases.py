"""Numbers, rows of words and causes in sentences that operators read."""

from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: 1 day, 2 days, 1,204 entries."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(words: Sequence[str], last: str = "and") -> str:
    """Words in a row: a, b and c; or with another word before the last."""
    return " ".join((", ".join(words[:-1]), last, words[-1])) if len(words) > 1 else "".join(words)


def rounded(value: float, rounding: str = ROUND_CEILING) -> str:
    """An epsilon in three decimals, two digits where it is small: up, as costs are, or by another rounding of decimals."""
    if value == float("inf"):
        return "infinite"
    digits = Decimal(repr(float(value)))  # the shortest digits that name the float: 0.1 stays 0.1
    places = max(3, 1 - digits.adjusted()) if digits else 3
    return f"{digits.quantize(Decimal(1).scaleb(-places), rounding):f}".rstrip("0").rstrip(".")


def unreadable(error: OSError) -> str:
    """Why a file cannot be read, as what is said of its path."""
    if isinstance(error, IsADirectoryError):
        return "is a folder, not a file"
    return f"cannot be read ({error.strerror or 'damaged'})"


def unwritable(error: OSError) -> str:
    """Why a file cannot be written, as what is said of its path."""
    return "is a folder, not a file" if isinstance(error, IsADirectoryError) else f"cannot be written ({error.strerror})"
