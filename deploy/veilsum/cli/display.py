"""How studies are shown: who takes part, what was done, what came out.

Progress of a long command on standard error: a bar on a terminal, a plain line for each step elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from veilsum.texts import figure_text, number_text
from veilsum_node.errors import RefusalCode
from veilsum_node.process.console import moment, print_fields, print_json, print_line, print_rows
from veilsum_privacy.dossier.figures import cost

if TYPE_CHECKING:
    from veilsum.remote import RoundInfo, StudyInfo
    from veilsum.verification import Look, Verified
    from veilsum_privacy.results.release_check import ProofFault
    from veilsum_privacy.results.result import Result


_GONE_ON = "Submit it again; if all sites say so, ask whether the coordinator was put back to an older copy."
_REMEDIES: Mapping[str, str] = {
    **dict.fromkeys((RefusalCode.STUDY_REPLAYED, RefusalCode.CLOSED, RefusalCode.ROUND), _GONE_ON),
    RefusalCode.STUDY_EXPIRED: "Submit it again; compare clocks if it is new.",
    RefusalCode.ANALYST: "Ask the site to name you under policy.analysts.",
    RefusalCode.PURPOSE: "State purpose, reference, legal_basis and contact in the study; ask the site which it requires.",
    RefusalCode.METHOD: "Ask the site to accept the method, or leave the site out.",
    RefusalCode.DATASET: "Correct the dataset's name or the schema's header, or leave the site out.",
    RefusalCode.DISCLOSURE: "Ask the site to accept the disclosure, or leave the site out.",
    RefusalCode.NOISE: "Ask for noise that its policy accepts; distributed needs every peer pinned there, local none.",
    RefusalCode.COHORT_SMALL: "Raise privacy.min_cohort, or name more participants.",
    RefusalCode.COHORT_TRUST: "Ask the sites to pin each other's keys, or use local noise.",
    RefusalCode.EPSILON: "Ask for a smaller epsilon or delta: the site's policy.max_epsilon and policy.max_delta bound both.",
    RefusalCode.BUDGET: "Ask for a smaller epsilon, or ask the site for a larger budget: its ledger allows no more.",
    RefusalCode.TASK: "Ask the site to accept the study's tasks, and to get its encoder's file; its log has the reason.",
    RefusalCode.UNIT: (
        "State joined = true in the schema where a person may have several rows; else the privacy.unit that the site accepts."
    ),
    RefusalCode.ATTEMPTS: "Wait until all participants are reachable, then submit it again.",
    RefusalCode.APPROVAL: "Ask the site's operator, who declined it by hand.",
}
"""What an analyst can do about a refusal. A site tells its code only; the reason stays in its own log."""


MOST_ROUNDS = 10
"""Rounds that are shown one by one, the newest ones."""

LONGEST_LIST = 60
"""Characters of a list of columns that are shown; a query can be over hundreds."""

LARGEST_CELL = 3
"""Items of a mapping that are shown in one cell; larger ones take a row for each item."""


def print_study(info: StudyInfo, *, as_json: bool) -> None:
    """Show a study's state."""
    if as_json:
        print_json(info.to_json())
        return
    fields: dict[str, object] = {
        "study": info.study,
        "method": info.method,
        "analyst": info.analyst,
        "submitted": moment(info.submitted),
        "phase": info.phase,
        "progress": f"{info.progress:.0%}",
        **_spent(info),
        "participants": info.participants,
        "enrolled": info.enrolled,
        **({"no answer yet" if info.phase == "enrolling" else "did not answer": info.silent} if info.silent else {}),
        "results": info.results,
    }
    if info.checkpoints:
        fields["checkpoints"] = [f"after round {number}" for number in info.checkpoints]
    if info.reason:
        fields["reason"] = info.reason
    print_fields(fields, title=f"Study {info.name}", as_json=False)
    if info.refusals:
        rows = [
            {
                "participant": item.participant,
                "refusal": item.code,
                "round": item.round or "",
                "what to do": _REMEDIES.get(item.code, "Ask the site: its log has the reason."),
            }
            for item in info.refusals
        ]
        print_rows(rows, title="Refusals", as_json=False)
    if len(info.rounds) > MOST_ROUNDS:
        print_rows(list(_by_task(info.rounds)), title="Rounds by task", as_json=False)
    if info.rounds:
        rounds: list[dict[str, object]] = [
            {
                "round": item.round,
                "task": item.label,
                "phase": item.phase,
                "attempts": item.attempts,
                "cohort": item.cohort,
                "received": size_text(item.bytes_received),
                "seconds": item.seconds if item.phase == "released" else "",
            }
            for item in info.rounds[-MOST_ROUNDS:]
        ]
        print_rows(rounds, title="Rounds" if len(rounds) == len(info.rounds) else "Newest rounds", as_json=False)


def _spent(info: StudyInfo) -> dict[str, object]:
    """Releases and epsilon so far, of all; nothing of a coordinator that does not tell."""
    if not info.declared:
        return {}
    fields: dict[str, object] = {"releases": f"{info.released} of {info.declared}"}
    if info.epsilon is not None and info.epsilon_spent is not None:
        fields["epsilon so far"] = f"{cost(info.epsilon_spent)} of {cost(info.epsilon)} (delta {info.delta:g})"
    return fields


def _by_task(rounds: Sequence[RoundInfo]) -> Iterator[dict[str, object]]:
    """One row a task, for studies of many rounds."""
    for label in dict.fromkeys(item.label for item in rounds):
        own = [item for item in rounds if item.label == label]
        done = [item for item in own if item.phase == "released"]
        yield {
            "task": label,
            "rounds": len(own),
            "released": len(done),
            "failed": sum(item.phase == "failed" for item in own),
            "attempts": sum(item.attempts for item in own),
            "smallest cohort": min((len(item.cohort) for item in done), default=""),
            "received": size_text(sum(item.bytes_received for item in own)),
            "seconds": f"{sum(item.seconds for item in own):.0f}",
        }


def print_result(result: Result, directory: Path, *, as_json: bool, proof: Look | None = None) -> None:
    """Show a result's summary, where its files lie and whether it was verified; with ``as_json`` on one line."""
    arrays = {name: list(array.shape) for name, array in result.arrays.items()}
    if as_json:
        shown = {"directory": str(directory), "method": result.method, "summary": result.summary, "arrays": arrays}
        print_json(shown if proof is None else shown | {"proof": proof.to_json()}, compact=True)
        return
    summary = dict(_flat(result.summary))
    plain = {key: _shown(value) for key, value in summary.items() if not _is_table(value)}
    if arrays:
        plain["arrays"] = list(arrays)
    print_fields(plain | {"directory": str(directory)}, title=f"Result of {result.method}", as_json=False)
    for key, value in summary.items():
        if _is_table(value):
            rows = [{name: _shown(cell) for name, cell in row.items()} for row in value]
            if key == "queries":
                rows = [{**row, "over": _short(row["over"])} for row in rows]
            print_rows(rows, title=key, as_json=False)
    if _has(result.summary, "noise_error"):
        print_line("In brackets the 95% interval for the population: sampling and noise together.")
    if proof is not None:
        print_line(_word(proof, directory))


def _word(proof: Look, directory: Path) -> str:
    if proof.verified is None:
        return f"NOT VERIFIED. {proof.fault or proof.missing}"
    found, rounded = proof.verified, ", up to rounding" if proof.rounded else ""
    count = len(found.releases)
    return (
        f"Verified: every number follows from {count} sum{'s' if count != 1 else ''} that the members signed for{rounded}"
        f" (proof of {size_text(found.proof_bytes)}). Anyone with the federation's authority.pem can repeat it:"
        f" veilsum study verify {directory} --authority authority.pem"
    )


def print_verified(found: Verified, directory: Path, *, as_json: bool) -> None:
    """Show what was verified of a result, what that proves and what not."""
    fields = {"result": str(directory), "valid": True, **found.fields}
    if as_json:
        print_json(fields | {"proves": found.proves, "leaves_open": found.leaves_open})
        return
    roster = fields.pop("roster")
    fields["proof_bytes"] = size_text(fields["proof_bytes"])
    print_fields(fields, title="Result", as_json=False)
    rows = [{"participant": name, "key fingerprint": fingerprint} for name, fingerprint in roster.items()]
    print_rows(rows, title="Roster", as_json=False)
    for title, items in (("This proves:", found.proves), ("This cannot prove:", found.leaves_open)):
        print_line(title)
        for item in items:
            print_line(f"  - {item}")


def print_fault(fault: ProofFault, directory: Path, *, as_json: bool) -> None:
    """Show the first thing of a result's proof that does not hold."""
    from veilsum.verification import RepetitionFault

    signed = {"signatures": "hold", "repeated": False} if isinstance(fault, RepetitionFault) else {}
    failed = {"result": str(directory), "valid": False, **signed}
    failed |= {"where": fault.where, "fault": fault.what, "advice": fault.advice}
    print_fields(failed, title="Result", as_json=as_json)


def _flat(summary: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The summary's items; a large mapping but a figure comes item by item, as ``alignment: tau``."""
    for key, value in summary.items():
        if isinstance(value, Mapping) and len(value) > LARGEST_CELL and "value" not in value:
            yield from ((f"{key}: {name}", item) for name, item in value.items())
        else:
            yield key, value


def _has(value: Any, key: str) -> bool:
    """Whether an estimate with such an error is anywhere in it."""
    if isinstance(value, Mapping):
        return key in value or any(_has(item, key) for item in value.values())
    return isinstance(value, Sequence) and not isinstance(value, str) and any(_has(item, key) for item in value)


def size_text(count: int) -> str:
    """A number of bytes for people."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def _shown(value: Any) -> Any:
    """A figure as ``value (low to high)``; other mappings item by item."""
    if isinstance(value, float):
        return number_text(value, 6)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, Mapping):
        return value
    if "noise_error" in value:
        return figure_text(value, "…")
    if "not_estimable" in value:
        return f"not estimable: {value['not_estimable']}"
    if value.keys() == {"below"}:
        return f"< {value['below']}"
    return ", ".join(f"{name} {_shown(item)}" for name, item in value.items())


def _short(names: str) -> str:
    """A list of columns, cut off behind one of them."""
    return names if len(names) <= LONGEST_LIST else f"{names[:LONGEST_LIST].rpartition(', ')[0] or names[:LONGEST_LIST]}, ..."


def _is_table(value: Any) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return False
    return all(isinstance(item, Mapping) and item.keys() == value[0].keys() for item in value)


@contextmanager
def show_progress() -> Iterator[Callable[[str, float], None]]:
    """Yield a function of (what is being done, how far it is from 0 to 1)."""
    if not sys.stderr.isatty():
        last = ""

        def line(step: str, fraction: float) -> None:
            nonlocal last
            if step != last:
                print(step, file=sys.stderr, flush=True)
                last = step

        yield line
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("Starting", total=1.0)
        yield lambda step, fraction: bar.update(task, description=step, completed=fraction)
