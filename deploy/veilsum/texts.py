"""Text as TeX shows it, and numbers as people read them."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

MOST_DIGITS = 16
"""Significant digits of a number as it is shown, of which a float has no more."""

_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "…": r"\dots{}",
    "—": "---",
    "−": "$-$",
    "†": r"\dag{}",
    "∞": r"$\infty$",
}
_TEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"} | {"±": r"$\pm$"}


def escaped_row(cells: Iterable[str]) -> str:
    """A row; one that begins with a bracket would be taken for an option of the command before it."""
    text = " & ".join(map(escaped_tex, cells))
    return ("{[}" + text[1:] if text.startswith("[") else text) + r" \\"


def escaped_tex(text: str) -> str:
    """Text on one line: an empty one would end the paragraph. Hyphens and quotes stay as they are."""
    apart = re.sub(r"(?<=([-`'?!]))(?=[-`'])", "\0", " ".join(text.split()))
    return "".join("{}" if letter == "\0" else _TEX.get(letter, letter) for letter in apart)


def number_text(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, and all those before its point."""
    whole = len(str(abs(round(value)))) if math.isfinite(value) else 0
    return f"{value:.{max(digits, whole if whole <= MOST_DIGITS else 0)}g}"


def figure_text(figure: Mapping[str, Any], open_end: str) -> str:
    """``61.2 (59.8 to 62.7)``: with as many digits as tell two of the interval's length, four at least.

    Args:
        figure: with ``value``, ``low`` and ``high``, of which an end may be None.
        open_end: what stands for that.
    """
    value, ends = figure["value"], (figure["low"], figure["high"])
    told = [end for end in ends if end is not None]
    reach = [abs(end - value) for end in told if end != value]
    digits = 4
    if reach:
        size = math.floor(math.log10(max(abs(value), *map(abs, told))))
        digits = min(max(digits, size - math.floor(math.log10(max(reach))) + 2), MOST_DIGITS)
    low, high = (open_end if end is None else number_text(end, digits) for end in ends)
    return f"{number_text(value, digits)} ({low} to {high})"
