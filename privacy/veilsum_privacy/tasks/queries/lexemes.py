"""The lexemes of conditions and expressions: numbers, quoted texts, names and signs, each with its place."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from veilsum_node.errors import HostileInput

MAX_LENGTH = 2000
"""Characters of a condition or an expression."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|(?P<text>'(?:[^']|'')*')"
    r"|(?P<quoted>\"(?:[^\"]|\"\")*\")|(?P<word>[^\W\d][\w.]*)|(?P<sign><=|>=|!=|<>|==|=|<|>|\(|\)|,|\+|-|\*|/))"
)


@dataclass(frozen=True)
class Lexeme:
    """A number, text, name, word or sign of a text, and where it begins; the last one is of the kind ``end``."""

    kind: str
    text: str
    place: int


def lexemes_of(text: str) -> Iterator[Lexeme]:
    """Cut a text into its lexemes.

    Raises:
        HostileInput: a character belongs to none.
    """
    place = 0
    end = len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            start = place + len(text[place:]) - len(text[place:].lstrip())
            raise HostileInput(f"{text!r}: character {start + 1} ({text[start]!r}) belongs to no condition.")
        kind = match.lastgroup
        yield Lexeme(kind, match.group(kind), match.start(kind))
        place = match.end()
    yield Lexeme("end", "", len(text))


def unquoted(lexeme: Lexeme) -> str:
    """What stands between its quotes, if it has any."""
    if lexeme.kind in ("text", "quoted"):
        quote = lexeme.text[0]
        return lexeme.text[1:-1].replace(quote * 2, quote)
    return lexeme.text
