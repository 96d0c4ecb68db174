"""Canonical JSON against the standard's reference, which writes it slowly."""

from __future__ import annotations

from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from veilsum_node.canonical import canonical, plain
from veilsum_node.errors import Misuse

_ASCII = st.text(alphabet=[chr(code) for code in range(128)], max_size=6)
_TEXT = _ASCII | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT
_VALUES = st.recursive(
    _LEAVES | st.binary(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(_VALUES)
def test_the_bytes_are_those_of_the_standard(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(plain(value))


def test_keys_are_in_the_order_of_utf_16() -> None:
    """U+1F600 is two surrogates, which sort before U+FB33; by code points it would come after."""
    assert canonical({"\ufb33": 1, "\U0001f600": 2}) == '{"\U0001f600":2,"\ufb33":1}'.encode()


def test_a_value_that_is_nested_too_deep_is_refused() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(Misuse):
        canonical(value)
