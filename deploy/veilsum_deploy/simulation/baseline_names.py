"""What can be computed beside a result, by name."""

from collections.abc import Mapping

from veilsum_node.config import did_you_mean
from veilsum_node.errors import Misuse

BASELINES: Mapping[str, str] = {
    "alone": "each site alone",
    "pooled": "pooled",
    "trained-alone": "each site alone, same model",
    "trained-pooled": "pooled, same model",
    "central": "pooled, same epsilon",
    "personal": "each site, personal",
}
"""Every baseline in words."""

OF_RECORDS = ("alone", "pooled")
"""Baselines that depend on the records only, and on no method."""

OF_CELLS = ("central", "personal")
"""Baselines that depend on all of a cell, its noise too."""

ASKED = ("personal",)
"""Baselines that are computed if they are asked for: they run the study once more."""

TRAINED = ("fedsgd", "fedavg")
"""Methods beside which, by default, their own model is trained too."""


def parse_baselines(text: str | None, method: str) -> tuple[str, ...]:
    """The baselines of a comma-separated list; by default those of records; for a method that trains all but ASKED.

    Raises:
        Misuse: a name that is none.
    """
    if text is None:
        return tuple(name for name in BASELINES if name not in ASKED) if method in TRAINED else OF_RECORDS
    if text == "none":
        return ()
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in (*BASELINES, "trained"):
            raise Misuse(f"No baseline is called {name!r}.", did_you_mean(name, [*BASELINES, "trained", "none"]))
    wanted = {*names, *(("trained-alone", "trained-pooled") if "trained" in names else ())}
    return tuple(name for name in BASELINES if name in wanted)
