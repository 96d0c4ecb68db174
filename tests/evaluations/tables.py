"""What evaluations print: Markdown tables, means with their errors; and the options that most of them have."""

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def run_options(name: str, what: str | None, runs: int) -> argparse.ArgumentParser:
    """A parser for ``python -m evaluations.NAME --runs --seed``; ``what`` is the docstring of its module."""
    parser = argparse.ArgumentParser(prog=f"evaluations.{name}", description=(what or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def print_table(heads: Sequence[str], rows: Iterable[str], texts: int = 1) -> None:
    """Print a table, each row as it is there; the first ``texts`` columns hold text."""
    print(f"{line(heads)}\n{line(['---'] * texts + ['---:'] * (len(heads) - texts))}")
    for row in rows:
        print(row, flush=True)


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Rows that :func:`append_rows` kept; none where the file does not exist."""
    return [json.loads(one) for one in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def append_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Keep each row, as a line of JSON, as it is there."""
    with file.open("a", encoding="utf-8") as lines:
        for row in rows:
            lines.write(json.dumps(row) + "\n")
            lines.flush()


def line(cells: Iterable[object]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def mean_with_error(values: Sequence[float] | NDArray[np.float64], places: int = 1, *, sign: bool = False) -> str:
    """A mean with its standard error, where there are two values or more."""
    text = f"{np.mean(values):{'+' if sign else ''}.{places}f}"
    return text if len(values) < 2 else f"{text} ± {np.std(values, ddof=1) / math.sqrt(len(values)):.{places}f}"
