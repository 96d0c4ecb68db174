"""Why a study may end without a result when processes are killed; every other reason is a fault."""

from __future__ import annotations

import re

ALLOWED: tuple[tuple[str, str], ...] = (
    ("consent missing", r"round \d+ was lost after consent was asked for: no consent from .+ in time"),
    (
        "consent refused: deadline",
        r"round \d+ was lost after consent was asked for: \w+ refused its consent \(round-replayed\)",
    ),
    ("too few left", r"(No round could start: )?\d+ participants are left, \d+ are needed( \([^()]+\))?\.?"),
    ("cohort changed", r"the cohort changed and the study allows one cohort only"),
    (
        "too few enrolled",
        r"\d+ of \d+ enrolled, \d+ are needed \((no answer|not connected): [^:;]+(; not connected: [^:;]+)?\)",
    ),
    ("too few exchanged keys", r"too few members exchanged their keys"),
)
"""Name and pattern of each."""

BUDGET = re.compile(r"\d+ of \d+ enrolled, \d+ are needed \((\w+: budget-exceeded(, )?)+\)")
"""The reason of a study that sites cannot pay."""

LOG_FAULTS = re.compile(r"Traceback|internal error|CRITICAL|Fatal Python error|does not verify|cannot continue")
"""What no kill may bring into a log."""


def name_of(reason: str) -> str | None:
    """The name of an allowed reason; None for another one."""
    return next((name for name, pattern in ALLOWED if re.fullmatch(pattern, reason)), None)
