"""What a person writes in Python where a study wants names: one or several, and numbers that are categories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from veilsum.api.options import as_list
from veilsum_node.errors import ConfigurationError


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("alive", ["alive"]),
        (["alive", "moved"], ["alive", "moved"]),
        (("alive",), ["alive"]),
        (0, ["0"]),
        (np.int64(2), ["2"]),
        ([0, 2], ["0", "2"]),
        (np.array([0, 2]), ["0", "2"]),
        ([], []),
    ],
)
def test_names_are_one_or_several_and_whole_numbers_are_categories(given: Any, names: list[str]) -> None:
    assert as_list(given) == names


@pytest.mark.parametrize("given", [None, 0.5, True, np.bool_(True), [None], [["a"]], object(), [0.0]])
def test_what_is_no_name_is_a_typed_error(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="is not a name"):
        as_list(given)
