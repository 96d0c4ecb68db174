"""Whether two names are of two people, where a rule asks for two: as they are read, and not by their characters.

A name is what its person typed, or what an identity provider says. So that nobody becomes a second person by a sign that looks
like another, two names count as one person's unless they differ by more than that: by case, marks on letters, spaces and
other signs, by i, l and 1, by o and 0, or by their scripts.
"""

import unicodedata
from collections.abc import Iterable

from veilsum_node.errors import Misuse

_TOGETHER = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "HANGUL": "CJK", "BOPOMOFO": "CJK"}
_LAST_OF_NAMES = "\u024f"
"""Latin letters behind it, without their marks, are phonetic signs and the like."""


def check_second(name: str, earlier: Iterable[str]) -> None:
    """Insist that a name is nobody's who is named already.

    Raises:
        Misuse: it looks like one of the earlier names, or is of another script; or it has letters of several scripts, or none.
    """
    script, read = _as_read(name)
    for other in earlier:
        known, seen = _as_read(other)
        if read == seen or script != known:
            raise Misuse(
                f"{name} may be {other}, who has decided already; it needs 2 people.",
                "Let somebody else decide it, too. Names in different scripts, or that look alike, count as one person's.",
            )


def _as_read(name: str) -> tuple[str, str]:
    """The script of a name, and its letters and digits as whoever reads it tells them apart."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name).casefold())
    letters = [sign for sign in plain if sign.isalpha()]
    scripts = {_TOGETHER.get(script, script) for script in (unicodedata.name(sign, "?").split()[0] for sign in letters)}
    if len(scripts) != 1 or (scripts == {"LATIN"} and max(letters) > _LAST_OF_NAMES):
        raise Misuse("Where two people decide, a name has letters of one script.", "Write the person's own name.")
    read = "".join(_letter(sign) for sign in plain if sign.isalnum())
    return scripts.pop(), read.translate(str.maketrans("l10", "iio"))


def _letter(sign: str) -> str:
    """A letter without its stroke, hook or missing dot, which do not decompose as marks do."""
    words = unicodedata.name(sign, sign).partition(" WITH ")[0].split()
    return words[-1].lower() if words[0] == "LATIN" and len(words[-1]) == 1 else sign
