"""Two people are two by names that nobody takes for one another's."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilsum_node.errors import Misuse
from veilsum_participant.protocol.four_eyes import check_second

ALIKE = {
    "a Cyrillic letter": "\u041elga Maier",
    "Cyrillic throughout": "\u041e\u04cf\u0261\u0430",
    "Greek throughout": "\u039f\u039b\u0393\u0391",
    "a full width": "\uff2f\uff4c\uff47\uff41 Maier",
    "a mathematical letter": "\U0001d40elga Maier",
    "a ligature's part": "Olga Mai\u1d49r",
    "a mark beneath": "Ol\u0323ga Maier",
    "a letter with a mark": "\u00d6lga Maier",
    "a stroke": "O\u0142ga Maier",
    "a missing dot": "Olga Ma\u0131er",
    "a phonetic letter": "Olg\u0251 Maier",
    "one for l": "O1ga Maier",
    "zero for O": "0lga Maier",
    "capital I for l": "OIga Maier",
    "spaces and signs": "Olga-Maier.",
    "another case": "OLGA MAIER",
}


@pytest.mark.parametrize("name", ALIKE.values(), ids=ALIKE)
def test_who_looks_like_the_first_is_no_second_person(name: str) -> None:
    with pytest.raises(Misuse, match=r"needs 2 people|letters of one script"):
        check_second(name, ["Olga Maier"])


@pytest.mark.parametrize("name", ["123", "...", "\u041elga", "A\u0391", "\u0430b", "\u200b\u2060"])
def test_a_name_has_letters_of_one_script(name: str) -> None:
    with pytest.raises(Misuse, match="letters of one script"):
        check_second(name, [])


PEOPLE = {
    "Latin": "Olga Maier|Olga Meier|Pia Berg|J\u00fcrgen \u00d8stergaard|Nguy\u1ec5n Th\u1ecb Minh|Zo\u00eb St\u00e6hr|Pia 2",
    "Cyrillic": "\u041e\u043b\u044c\u0433\u0430 \u041c\u0430\u0439\u0435\u0440|\u0410\u043d\u043d\u0430",
    "Japanese": "\u5c71\u7530 \u82b1\u5b50|\u3055\u304f\u3089 \u5c71\u7530|\u30ab\u30ca \u7530\u4e2d",
    "Greek": "\u0391\u03bd\u03bd\u03b1 \u03a0\u03b1\u03c0\u03c0\u03ac|\u0393\u03b9\u03ce\u03c1\u03b3\u03bf\u03c2",
}


@pytest.mark.parametrize("people", PEOPLE.values(), ids=PEOPLE)
def test_other_people_of_one_script_are_others(people: str) -> None:
    names = people.split("|")
    for place, name in enumerate(names):
        check_second(name, names[:place])


@settings(max_examples=300, deadline=None)
@given(
    name=st.text(max_size=30),
    case=st.sampled_from([str, str.upper, str.lower, str.title]),
    form=st.sampled_from(["NFC", "NFKD"]),
)
def test_no_one_is_a_second_person_beside_themselves(name: str, case: type[str], form: str) -> None:
    with pytest.raises(Misuse):
        check_second(unicodedata.normalize(form, case(name)), [name])
