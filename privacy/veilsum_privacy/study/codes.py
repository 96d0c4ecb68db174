"""Codes of many thousands of kinds, such as those of ICD-10, and the few groups that a study rolls them up into.

A code stands for itself and for all below it: ``E11`` for E11.9 and E11.65. What group a cell is of follows from its own text
and the study alone.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from veilsum_privacy.study.schema import CodeGroup

LONGEST = 64
"""Characters of the longest text that is a code."""

_MARKS = " .-\u2020*+!#"
"""What may follow a code: the dash of a category without its subdivision (E11.-), ICD-10's dagger, asterisk and the like."""


@dataclass(frozen=True)
class CodeSystem:
    """How codes are written, in capitals: ``whole`` what a cell may hold, ``part`` what a group may name, dots included."""

    whole: re.Pattern[str]
    part: re.Pattern[str]

    def normal(self, text: str) -> str | None:
        """A cell's code without case, dots and marks; None where it holds none."""
        return _normal(text, self.whole)


def _normal(text: str, form: re.Pattern[str]) -> str | None:
    bare = text.strip().rstrip(_MARKS)
    if not 0 < len(bare) <= LONGEST or not bare.isascii():
        return None
    found = form.fullmatch(bare.upper())
    return None if found is None else found[0].replace(".", "")


SYSTEMS: Mapping[str, CodeSystem] = {
    "any": CodeSystem(*2 * (re.compile(r"(?:[0-9]+-)*[0-9A-Z]+(?:\.[0-9A-Z]+)*"),)),
    "icd-10": CodeSystem(
        re.compile(r"(?:[A-Z][0-9]|QA)[0-9A-Z](?:\.?[0-9A-Z]{1,4})?"),
        re.compile(r"[A-Z](?:[0-9A-Z](?:[0-9A-Z](?:\.?[0-9A-Z]{1,4})?)?)?"),
    ),
    "icd-9-cm": CodeSystem(
        re.compile(r"(?:[0-9]{3}|V[0-9]{2})(?:\.?[0-9]{1,2})?|E[0-9]{3}(?:\.?[0-9])?"),
        re.compile(r"[0-9]{1,2}|(?:[0-9]{3}|V[0-9]{2})(?:\.?[0-9]{1,2})?|V[0-9]?|E(?:[0-9]{0,2}|[0-9]{3}(?:\.?[0-9])?)"),
    ),
    "atc": CodeSystem(
        re.compile(r"[A-Z](?:[0-9]{2}(?:[A-Z](?:[A-Z](?:[0-9]{2})?)?)?)?"),
        re.compile(r"[A-Z](?:[0-9]{1,2}|[0-9]{2}[A-Z]{1,2}[0-9]{0,2})?"),
    ),
}
"""Systems of codes by name. ICD-10 is the WHO's with what national variants add, such as C7A, O9A and QA0 of ICD-10-CM, or D90
of ICD-10-GM; ICD-9-CM its diagnoses; ATC the WHO's, of any level; other codes are letters and digits, with dots, or hyphens
after digits."""


class Groups:
    """Finds a code's group: that of the longest code that it begins with; of equally long ones a code counts before a range.

    Args:
        system: how the codes are written.
        groups: codes and ranges of each group, in order.

    Raises:
        ValueError: a code or range is malformed, or of two groups.
    """

    def __init__(self, system: CodeSystem, groups: Iterable[tuple[str, Sequence[str]]]) -> None:
        self.system = system
        self._codes: dict[str, int] = {}
        ranges: dict[int, list[tuple[str, str, int]]] = {}
        names = []
        for index, (name, codes) in enumerate(groups):
            names.append(name)
            for text in codes:
                first, dots, last = text.partition("..")
                low, high = _part(system, first, text), _part(system, last if dots else first, text)
                if dots:
                    if len(low) != len(high) or low > high:
                        raise ValueError(
                            f"{text!r} is not a range: its ends are equally long, the lower first, as in E10..E14"
                        )
                    ranges.setdefault(len(low), []).append((low, high, index))
                elif self._codes.setdefault(low, index) != index:
                    raise ValueError(f"{text!r} stands in two groups, {names[self._codes[low]]!r} and {name!r}")
        self._ranges: dict[int, tuple[list[str], list[tuple[str, str, int]]]] = {}
        for length, found in ranges.items():
            merged: list[tuple[str, str, int]] = []
            for low, high, index in sorted(found):
                if not merged or low > merged[-1][1]:
                    merged.append((low, high, index))
                    continue
                first, last, group = merged[-1]
                if group != index:
                    told = f"{names[group]!r} and {names[index]!r}"
                    raise ValueError(f"{low}..{high} meets {first}..{last}, of another group: {told}")
                merged[-1] = first, max(high, last), index
            self._ranges[length] = [low for low, _, _ in merged], merged
        self._lengths = sorted({*map(len, self._codes), *self._ranges}, reverse=True)

    def find(self, code: str) -> int:
        """The index of a normal code's group; -1 where it is of none."""
        for length in self._lengths:
            if length > len(code):
                continue
            part = code[:length]
            if (index := self._codes.get(part)) is not None:
                return index
            if length in self._ranges:
                lows, ranges = self._ranges[length]
                if place := bisect_right(lows, part):
                    low, high, index = ranges[place - 1]
                    if part <= high and _alike(part, low, high):
                        return index
        return -1


def _part(system: CodeSystem, text: str, whole: str) -> str:
    """A code that a group names, in its normal form."""
    found = _normal(text, system.part)
    if found is None or ("-" in text.strip().rstrip(_MARKS) and _is_range(text)):
        low, _, high = text.partition("-")
        hint = (
            f"write a range as {low.strip()}..{high.strip()}" if high.strip() else "docs/files.md says how codes are written"
        )
        raise ValueError(f"{whole!r} is not a code: {hint}")
    return found


def _is_range(text: str) -> bool:
    """Whether a text with a hyphen reads like a range, as 001-139 does, and LOINC's 4548-4 does not."""
    low, _, high = (part.strip() for part in text.partition("-"))
    return len(low) == len(high) > 1


def _alike(part: str, low: str, high: str) -> bool:
    """Whether a part has digits where a range's ends have, so that CAT is not within C00..D49.

    Its last character need not, of three or more: ICD-10-CM goes on with letters there, from C79 to C7A.
    """
    free = len(part) - 1 if len(part) > 2 else len(part)
    return all(
        a.isdigit() or not (b.isdigit() and c.isdigit()) for a, b, c in zip(part[:free], low[:free], high[:free], strict=True)
    )


def _table(system: str, rows: str) -> tuple[str, tuple[CodeGroup, ...]]:
    pairs = (row.strip().split(" ", 1) for row in rows.strip().splitlines())
    return system, tuple(CodeGroup(name=name, codes=(codes,)) for codes, name in pairs)


TABLES: Mapping[str, tuple[str, tuple[CodeGroup, ...]]] = {
    "icd-10-chapters": _table(
        "icd-10",
        """
        A00..B99 I infections
        C00..D49 II neoplasms
        D50..D90 III blood and immunity
        E00..E90 IV endocrine and metabolic
        F00..F99 V mental
        G00..G99 VI nervous system
        H00..H59 VII eye
        H60..H95 VIII ear
        I00..I99 IX circulatory
        J00..J99 X respiratory
        K00..K95 XI digestive
        L00..L99 XII skin
        M00..M99 XIII musculoskeletal
        N00..N99 XIV genitourinary
        O00..O9A XV pregnancy
        P00..P96 XVI perinatal
        Q00..QA0 XVII congenital
        R00..R99 XVIII symptoms
        S00..T98 XIX injury and poisoning
        V00..Y99 XX external causes
        Z00..Z99 XXI contact with services
        U00..U99 XXII special purposes
        """,
    ),
    "icd-9-cm-chapters": _table(
        "icd-9-cm",
        """
        001..139 infections
        140..239 neoplasms
        240..279 endocrine and metabolic
        280..289 blood
        290..319 mental
        320..389 nervous system and senses
        390..459 circulatory
        460..519 respiratory
        520..579 digestive
        580..629 genitourinary
        630..679 pregnancy
        680..709 skin
        710..739 musculoskeletal
        740..759 congenital
        760..779 perinatal
        780..799 symptoms
        800..999 injury and poisoning
        E000..E999 external causes
        V01..V91 contact with services
        """,
    ),
    "atc-main-groups": _table(
        "atc",
        """
        A A alimentary tract and metabolism
        B B blood
        C C cardiovascular
        D D dermatologicals
        G G genitourinary and sex hormones
        H H systemic hormones
        J J antiinfectives
        L L antineoplastic and immunomodulating
        M M musculoskeletal
        N N nervous system
        P P antiparasitic
        R R respiratory
        S S sensory organs
        V V various
        """,
    ),
}
"""Public tables by name: their system, and their groups."""
