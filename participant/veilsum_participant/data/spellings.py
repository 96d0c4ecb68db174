"""Which of a schema's texts a cell means: the one that it spells, else one of the same letters or the only one of its number.

Codes are texts that look like numbers: in ICD-9 042 is HIV, 0042 would be a kind of Shigella. So a number's spelling counts
before its value, and a text with a leading zero has no value, nor one such as 1E1, a ward and not ten: software writes a sign
before an exponent, or a point. A letter and its accent may be one character or two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple, Self
from unicodedata import normalize

import pyarrow as pa

from veilsum_privacy.study.schema import CategoryColumn, LabelColumn

_NUMBER = re.compile(r"([+-]?)([0-9]*)\.?([0-9]*)(?:[eE]([+-]?[0-9]{1,9}))?")
_TRUE = frozenset(("true", "t", "yes", "y", "on"))
_FALSE = frozenset(("false", "f", "no", "n", "off"))


class Exact(NamedTuple):
    """A decimal number to its last digit: sign, digits without zeros at either end, and the power of ten of the last one."""

    negative: bool
    digits: str
    power: int

    @property
    def text(self) -> str:
        """One spelling of each number, without an exponent if that takes at most 20 digits."""
        number = Decimal((int(self.negative), tuple(map(int, self.digits or "0")), self.power))
        return f"{number:f}" if abs(self.power) <= 20 else str(number)


def exact(text: str, *, padded: bool = False) -> Exact | None:
    """The number that a text spells; None where it spells none, or looks like a code and is not ``padded`` on purpose."""
    found = _NUMBER.fullmatch(text)
    if found is None or not (found[2] or found[3]):
        return None
    bare = found[4] and found[4].isdigit() and "." not in text
    if not padded and (bare or (len(found[2]) > 1 and found[2].startswith("0"))):
        return None
    digits = (found[2] + found[3]).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return Exact(False, "", 0)
    power = int(found[4] or 0) - len(found[3]) + len(digits) - len(significant)
    return Exact(found[1] == "-", significant, power)


def known_texts(column: CategoryColumn | LabelColumn) -> list[tuple[str, int]]:
    """The texts that a schema names for a column, its categories or the values of its classes, with their codes."""
    if isinstance(column, LabelColumn):
        return [(text, code) for code, item in enumerate(column.classes) for text in item.values]
    return [(text, code) for code, text in enumerate(column.categories)]


@dataclass(frozen=True)
class Spellings:
    """Texts and what they mean.

    Attributes:
        texts: the code of each text, trimmed; and of its composed form (NFC), unless that is another text's own.
        numbers: the code of each number that texts of one code alone spell.
    """

    texts: Mapping[str, int]
    numbers: Mapping[Exact, int]

    @classmethod
    def of(cls, known: Iterable[tuple[str, int]]) -> Self:
        """Spellings of texts with their codes."""
        texts: dict[str, int] = {}
        numbers: dict[Exact, set[int]] = {}
        known = [*known]
        for text, code in known:
            texts.setdefault(text.strip(), code)
            if (number := exact(text.strip())) is not None:
                numbers.setdefault(number, set()).add(code)
        for text, code in known:
            texts.setdefault(normalize("NFC", text.strip()), code)
        return cls(texts, {number: codes.pop() for number, codes in numbers.items() if len(codes) == 1})

    def find(self, text: str) -> int:
        """The code that a trimmed text means; -1 for none."""
        code = self.texts.get(text)
        if code is None and not text.isascii():
            code = self.texts.get(normalize("NFC", text))
        if code is None and self.numbers and (number := exact(text)) is not None:
            code = self.numbers.get(number)
        return -1 if code is None else code


def stored(known: Sequence[tuple[str, int]], kind: Any) -> Mapping[Any, str]:
    """Which text each value of a column that is stored as numbers, or as true and false, stands for.

    Args:
        known: texts with their codes.
        kind: the column's Arrow type.

    Returns:
        By exact number, or by truth, the text; none where texts of several codes claim it.
    """
    claims = _claims(known, kind).items()
    return {value: texts[0][0] for value, texts in claims if len({code for _, code in texts}) == 1}


def clash(known: Sequence[tuple[str, int]], kind: Any) -> tuple[str, str] | None:
    """Two texts of different codes that a column of this Arrow type cannot tell apart; None where there are none."""
    for (first, own), *others in _claims(known, kind).values():
        if alike := [text for text, code in others if code != own]:
            return first, alike[0]
    return None


def _claims(known: Sequence[tuple[str, int]], kind: Any) -> dict[Any, list[tuple[str, int]]]:
    """The texts, with their codes, of each value of a column of an Arrow type."""
    found: dict[Any, list[tuple[str, int]]] = {}
    for text, code in known:
        if (value := _stored_value(text.strip(), kind)) is not None:
            found.setdefault(value, []).append((text.strip(), code))
    return found


def _stored_value(text: str, kind: Any) -> Exact | bool | None:
    """What a column of an Arrow type holds for a text; a number has no leading zeros, so here those of a text do not count."""
    number = exact(text, padded=True)
    if not pa.types.is_boolean(kind):
        return number
    if text.casefold() in _TRUE or number == Exact(False, "1", 0):
        return True
    return False if text.casefold() in _FALSE or number == Exact(False, "", 0) else None
