"""``PYTHONPATH=tests python -m load [SCENARIO ...] [--participants 200] [--postgres] [--packages TREE] [--json]``."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from load import scenarios
from load.figures import exponent, table
from load.scenarios import Course

SCENARIOS = ("growth", "silent", "storms", "leak", "greedy", "loris")


def show_phases(courses: dict[str, Course]) -> str:
    """A table of phases: how long, what it cost the coordinator, and who waited."""
    head = ("", "phase", "asked", "seconds", "coordinator's CPU s", "asked after s, median", "slowest", "slowest / median")
    rows: list[Sequence[object]] = []
    for name, course in courses.items():
        for phase, cpu in course.phases:
            ratio = phase.slowest / phase.median if phase.median > 0 else 0.0
            kind = phase.kind if phase.attempt <= 1 else f"{phase.kind} (attempt {phase.attempt})"
            rows.append((name, kind, phase.count, phase.seconds, cpu, phase.median, phase.slowest, ratio))
    return table(head, rows)


def show_courses(courses: dict[str, Course]) -> str:
    """A table of whole studies."""
    head = (
        "",
        "participants",
        "cohort",
        "sessions open after s",
        "study s",
        "coordinator's CPU s",
        "peak MiB",
        "participants' CPU s",
    )
    return table(
        head,
        [
            (name, item.count, item.cohort, item.opening, item.seconds, item.cpu, item.peak, item.hosts)
            for name, item in courses.items()
        ],
    )


def main() -> None:
    """Parse the command line, try, print."""
    parser = argparse.ArgumentParser(prog="load", description="Many participants at one coordinator.")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; default: all")
    parser.add_argument("--participants", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="*", help="sizes whose growth is measured; default: an eighth to all")
    parser.add_argument("--studies", type=int, default=10, help="studies after which memory is looked at")
    parser.add_argument("--hosts", type=int, default=2, help="processes that host the participants")
    parser.add_argument("--postgres", action="store_true", help="the coordinator's database is PostgreSQL")
    parser.add_argument("--packages", type=Path, help="a tree whose packages the coordinator runs, to compare versions")
    parser.add_argument("--json", type=Path, help="write all figures there")
    given = parser.parse_args()
    if unknown := set(given.scenarios) - set(SCENARIOS):
        parser.error(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    count, wanted, kept = given.participants, given.scenarios or SCENARIOS, {}
    options: dict[str, Any] = {"hosts": given.hosts, "packages": given.packages}
    with tempfile.TemporaryDirectory(prefix="veilsum-load-") as place:
        for name in wanted:
            if given.postgres:
                from support.postgres import server

                options["database"] = server().new_database()
            print(f"\n## {name}\n", flush=True)
            kept[name] = _try(name, Path(place), count, given, options)
    if given.json:
        given.json.write_text(json.dumps(kept, indent=1))


def _try(name: str, place: Path, count: int, given: argparse.Namespace, options: dict[str, Any]) -> Any:
    if name == "leak":
        memory = scenarios.leak(place, count, given.studies, lambda line: print(line, flush=True), **options)
        rest = memory[1:]
        print(f"a study leaves {(rest[-1] - rest[0]) / max(1, len(rest) - 1):.2f} MiB after the first")
        return memory
    if name == "growth":
        sizes = given.sizes or [count // 8, count // 4, count // 2, count]
        grown = scenarios.growth(place, sizes, **options)
        courses = {str(size): course for size, course in grown.items()}
        print(show_courses(courses))
        print(show_phases(courses))
        print(f"exponents: CPU {exponent({size: item.cpu for size, item in grown.items()}):.2f}", end=", ")
        base = min(item.peak for item in grown.values())
        print(f"memory above the smallest {base:.0f} MiB: {[round(item.peak - base, 1) for item in grown.values()]}")
    else:
        tried: dict[str, Any] = {
            "silent": scenarios.silent,
            "storms": scenarios.storms,
            "greedy": scenarios.greedy,
            "loris": scenarios.loris,
        }
        result = tried[name](place, count, **options)
        courses = result if isinstance(result, dict) else {name: result}
        print(show_courses(courses))
        print(show_phases(courses))
        for key, course in courses.items():
            for what, figure in course.more.items():
                print(f"{key}: {what}: {figure:.3g}")
    return {key: asdict(course) for key, course in courses.items()}


if __name__ == "__main__":
    main()
