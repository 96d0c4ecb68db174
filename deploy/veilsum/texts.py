"""Text as TeX shows it."""

import re
from collections.abc import Iterable

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
