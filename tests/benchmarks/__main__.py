"""Run the benchmarks and print tables, or JSON: ``python -m benchmarks [SECTION ...] [--quick] [--json]``."""

from __future__ import annotations

import argparse
import json
import os
import platform
from typing import Any

from benchmarks import (
    accounting,
    barycenter,
    geometry,
    gradients,
    large,
    large_model,
    ledger,
    load,
    masked_transport,
    memory,
    peers,
    secure_sum,
    simulation,
    steps,
)

SECTIONS = (
    "sums",
    "accounting",
    "ledger",
    "barycenter",
    "geometry",
    "gradients",
    "masked_transport",
    "simulation",
    "steps",
    "small",
    "coordinator",
    "load",
    "large",
    "large-model",
    "peers",
)


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
    results: dict[str, Any] = {}
    if "sums" in wanted:
        results["sums"] = secure_sum.measure_all(quick=options.quick)
    if "accounting" in wanted:
        results["accounting"] = accounting.measure()
    if "ledger" in wanted:
        results["ledger"] = ledger.measure()
    if "barycenter" in wanted:
        results["barycenter"] = barycenter.measure(quick=options.quick)
    if "geometry" in wanted:
        results["geometry"] = geometry.measure(quick=options.quick)
    if "simulation" in wanted:
        results["simulation"] = simulation.measure(quick=options.quick)
    if "load" in wanted:
        results["load"] = load.measure(quick=options.quick)
    if "large" in wanted:
        results["large"] = large.measure(quick=options.quick)
    if "masked_transport" in wanted:
        results["masked_transport"] = masked_transport.measure(quick=options.quick)
    if "gradients" in wanted:
        results["gradients"] = gradients.measure(quick=options.quick)
    if "steps" in wanted:
        results["steps"] = steps.measure(quick=options.quick)
    if "small" in wanted:
        results["small"] = steps.measure_small(quick=options.quick)
    if "coordinator" in wanted:
        results["coordinator"] = memory.measure_round(quick=options.quick)
    if "large-model" in wanted:
        results["large-model"] = large_model.measure(quick=options.quick)
    if "peers" in wanted:
        results["peers"] = peers.measure(quick=options.quick)
    if options.json:
        machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
        print(json.dumps({"machine": machine, "results": results}, indent=2))
        return
    if "sums" in results:
        print(secure_sum.table(results.pop("sums")))
    if "barycenter" in results:
        print(barycenter.table(results.pop("barycenter")))
    if "geometry" in results:
        print(geometry.table(results.pop("geometry")))
    if "masked_transport" in results:
        print(masked_transport.table(results.pop("masked_transport")))
    if "gradients" in results:
        print(gradients.table(results.pop("gradients")))
    if "steps" in results:
        print(steps.table(results.pop("steps")))
    if "peers" in results:
        print(peers.table(results.pop("peers")))
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
