"""What can be computed beside a result, by name."""

from __future__ import annotations

from collections.abc import Mapping

from veilsum_node.config import did_you_mean
from veilsum_node.errors import Misuse

BASELINES: Mapping[str, str] = {
    "alone": "each site alone",
    "pooled": "pooled",
    "trained-alone": "each site alone, same model",
    "trained-pooled": "pooled, same model",
    "central": "pooled, same epsilon",
}
"""Every baseline in words."""

OF_RECORDS = ("alone", "pooled")
"""Baselines that depend on the records only, and on no method."""

TRAINED = ("fedsgd", "fedavg")
"""Methods beside which, by default, their own model is trained too."""


def parse_baselines(text: str | None, method: str) -> tuple[str, ...]:
    """The baselines of a comma-separated list; by default those of records, and all of them for a method that trains.

    Raises:
        Misuse: a name that is none.
    """
    if text is None:
        return tuple(BASELINES) if method in TRAINED else OF_RECORDS
    if text == "none":
        return ()
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in (*BASELINES, "trained"):
            raise Misuse(f"No baseline is called {name!r}.", did_you_mean(name, [*BASELINES, "trained", "none"]))
    wanted = {*names, *(("trained-alone", "trained-pooled") if "trained" in names else ())}
    return tuple(name for name in BASELINES if name in wanted)
