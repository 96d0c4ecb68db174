"""Numbers and causes in sentences that operators read."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: 1 day, 2 days, 1,204 entries."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def unreadable(error: OSError) -> str:
    """Why a file cannot be read, as what is said of its path."""
    if isinstance(error, IsADirectoryError):
        return "is a folder, not a file"
    return f"cannot be read ({error.strerror or 'damaged'})"


def unwritable(error: OSError) -> str:
    """Why a file cannot be written, as what is said of its path."""
    return "is a folder, not a file" if isinstance(error, IsADirectoryError) else f"cannot be written ({error.strerror})"
