"""Run the benchmarks and print tables, or JSON: ``python -m benchmarks [SECTION ...] [--quick] [--json]``."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from typing import Any

from benchmarks import (
    accounting,
    barycenter,
    footprint,
    geometry,
    gradients,
    large,
    large_model,
    ledger,
    lives,
    load,
    masked_transport,
    members,
    memory,
    peers,
    reading,
    secure_sum,
    simulation,
    steps,
    wide,
)

SECTIONS: dict[str, tuple[Callable[..., Any], Callable[[Any], str] | None]] = {
    "sums": (secure_sum.measure_all, secure_sum.table),
    "accounting": (lambda quick: accounting.measure(), None),
    "ledger": (lambda quick: ledger.measure(), None),
    "barycenter": (barycenter.measure, barycenter.table),
    "geometry": (geometry.measure, geometry.table),
    "simulation": (simulation.measure, None),
    "lives": (lives.measure, None),
    "load": (load.measure, None),
    "large": (large.measure, None),
    "large-model": (large_model.measure, None),
    "followed": (steps.measure_followed, None),
    "masked_transport": (masked_transport.measure, masked_transport.table),
    "gradients": (gradients.measure, gradients.table),
    "reading": (reading.measure, reading.table),
    "steps": (steps.measure, steps.table),
    "small": (steps.measure_small, None),
    "members": (members.measure, None),
    "footprint": (footprint.measure, None),
    "coordinator": (memory.measure_round, None),
    "wide": (wide.measure, None),
    "peers": (peers.measure, peers.table),
}
"""How each is measured, and printed where it is not a list of figures."""


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="benchmarks", description="Benchmarks of veilsum.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; default: all but peers")
    parser.add_argument("--quick", action="store_true", help="the smallest sizes only")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    wanted = options.sections or [section for section in SECTIONS if section != "peers"]  # which fetches packages
    results = {name: measure(quick=options.quick) for name, (measure, _) in SECTIONS.items() if name in wanted}
    if options.json:
        machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
        print(json.dumps({"machine": machine, "results": results}, indent=2))
        return
    tables = {name: table for name, (_, table) in SECTIONS.items() if table is not None and name in results}
    for name, table in tables.items():
        print(table(results.pop(name)))
    for section, figures in results.items():
        print(f"\n{section}")
        for name, value in figures.items():
            _show(name, value, "  ")


def _show(name: str, value: Any, indent: str) -> None:
    """Print a figure, or what lies below it, one a line."""
    if isinstance(value, dict):
        print(f"{indent}{name}")
        for key, below in value.items():
            _show(key, below, indent + "  ")
    elif isinstance(value, list):
        for number, below in enumerate(value, 1):
            _show(f"{name} {number}", below, indent)
    else:
        print(f"{indent}{name:<36} {value:.4g}" if isinstance(value, float) else f"{indent}{name:<36} {value}")


if __name__ == "__main__":
    main()
