"""Nothing that a name, a file or a peer says steers the terminal of who reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from veilsum_node.errors import DataError, Refusal, RefusalCode
from veilsum_node.process.console import print_fields, print_json, print_line, print_rows, report_error

ODD = "\x1b[31m\x07\x08\r\x9b2J\x7f\u202ex\u2066\x00"
TEXTS = st.text(st.sampled_from([*ODD, "a", "é", "\n", "\t", "\U0001f600"]), max_size=12)


def assert_plain(shown: str) -> None:
    assert all(letter.isprintable() or letter in "\n\t" for letter in shown), ascii(shown)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, other=TEXTS, as_json=st.booleans())
def test_no_control_character_is_printed(capsys: pytest.CaptureFixture[str], text: str, other: str, as_json: bool) -> None:
    print_rows([{text or "a": other, "more": [text, other]}], title=text, as_json=as_json)
    print_fields({text or "a": other}, title=other, as_json=as_json)
    print_line(text)
    report_error(DataError(text, other), as_json=as_json)
    report_error(Refusal(RefusalCode.DATASET, text, other), as_json=as_json)
    out, err = capsys.readouterr()
    assert_plain(out)
    assert_plain(err)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.recursive(TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)))
def test_json_says_what_it_was_given(capsys: pytest.CaptureFixture[str], value: Any) -> None:
    print_json(value)
    assert json.loads(capsys.readouterr().out) == value


def test_a_long_list_does_not_widen_a_piped_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Every line of a table is as wide as its widest; nothing of the list is lost."""
    words = [f"task-{number}" for number in range(400)]
    print_fields({"tasks": words, "short": "x"}, title="Policy", as_json=False)
    print_rows([{"tasks": words, "short": "x"}], title="Policies", as_json=False)
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()) < 400
    flat = "".join(character for character in out if character not in "│┃ \n")
    assert flat.count("task-399") == 2
