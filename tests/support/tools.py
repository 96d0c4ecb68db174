"""Programs of other projects that some tests run: skipped where one is absent, unless the environment demands it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

from local.tools import find_tool

DEMANDED = "VEILSUM_REQUIRE_TOOLS"
"""With this variable set to 1, as in the project's whole check, an absent program fails the test."""


def need_tool(name: str) -> Path:
    """Path of a program; without it the test is skipped, or fails where ``VEILSUM_REQUIRE_TOOLS=1``."""
    path = find_tool(name)
    if path is None:
        reason = f"the program {name} is neither in .tools/bin nor on PATH: run `make tools`"
        give_up(reason)
    return path


def give_up(reason: str) -> NoReturn:
    """Skip the test for what this machine lacks, or fail it where ``VEILSUM_REQUIRE_TOOLS=1``."""
    if os.environ.get(DEMANDED) == "1":
        pytest.fail(reason)
    pytest.skip(reason)
