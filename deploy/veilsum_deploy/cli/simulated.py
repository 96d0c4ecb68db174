"""What ``veilsum simulate`` does: loaded when a study is simulated, and not for the command's help."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from veilsum.cli.display import show_progress
from veilsum.texts import number_text
from veilsum_deploy.data_names import PACKAGED
from veilsum_deploy.simulation.baseline_names import BASELINES, parse_baselines
from veilsum_deploy.simulation.engines import Engine, ProcessEngine, RayEngine, SerialEngine, cores, running
from veilsum_deploy.simulation.jobs import load_source
from veilsum_deploy.simulation.report import save, summarise
from veilsum_deploy.simulation.run_store import RunStore
from veilsum_deploy.simulation.runs import simulate
from veilsum_deploy.simulation.scores import NAMES
from veilsum_deploy.simulation.study import SimulatedRuns, Simulation, draft_of, with_stations
from veilsum_deploy.simulation.sweep import Cell, Source, Sweep
from veilsum_node.config import read_toml
from veilsum_node.errors import Misuse
from veilsum_node.process.console import print_fields, print_json, print_line, print_rows
from veilsum_privacy.dossier.figures import cost
from veilsum_privacy.training import device

EXIT_INTERRUPTED = 130


def make_engine(name: str, workers: int, address: str | None = None, on: str = device.CPU) -> Engine:
    """An engine by its name: ``local`` or ``ray``; ``workers`` 0 stands for all cores; networks are computed ``on`` a device.

    Raises:
        Misuse: no such engine, an address for ``local``, or Ray is not installed.
        StateError: the Ray cluster cannot be reached.
    """
    if name == "ray":
        return RayEngine(address, workers or None)
    if name != "local":
        raise Misuse(f"No engine is called {name!r}.", "Use local or ray.")
    if address is not None:
        raise Misuse("--address belongs to a Ray cluster.", "State --engine ray too.")
    count = workers or cores()
    return SerialEngine() if count == 1 else ProcessEngine(count, on)


def source_of(
    study: Path,
    data: Path | None,
    dataset: str | None,
    collection: str | None,
    site_column: str | None,
    domain_column: str | None,
    subject: str | None,
    dialect: tuple[str, ...],
) -> Source:
    """Where the records come from, by the command's options.

    Raises:
        Misuse: they do not go together.
    """
    if sum(item is not None for item in (data, dataset, collection)) != 1:
        raise Misuse("State either --data or --dataset or --collection.", f"Packaged data sets: {', '.join(PACKAGED)}.")
    if data is not None:
        name = str(read_toml(study).get("dataset", data.stem))
        own = data.is_dir() or site_column is not None or domain_column is not None
        return Source("sites" if own else "file", name, data, site_column, subject, domain_column, dialect)
    if dialect or any(column is not None for column in (site_column, domain_column, subject)):
        told = "--site-column, --domain-column, --subject and --dialect belong to records of your own."
        raise Misuse(told, "Name them with --data.")
    if dataset is not None:
        return Source("packaged", dataset)
    name, equals, folder = str(collection).partition("=")
    if not equals or not folder:
        raise Misuse(f"--collection {collection} does not name a folder.", "Use --collection NAME=FOLDER.")
    return Source("collection", name, Path(folder))


@dataclass(frozen=True)
class Place:
    """Where it is computed: engine, address of a cluster, how many processes, None for the default, and their device."""

    engine: str
    address: str | None
    jobs: int | None
    device: str


def simulate_one(
    study: Path, one: Sweep, repeat: int, encryption: bool, place: Place, out: Path | None, resume: bool, as_json: bool
) -> None:
    """Run one study, and show it: ``one`` is a sweep of a single cell."""
    loaded = load_source(one, str(study))
    content = with_stations(one.content, loaded, one.setting)
    draft = draft_of(content, one.base, loaded.schema, source=str(study), program=one.program, weights=one.weights)
    if draft.schema != loaded.schema:
        loaded = loaded.with_schema(draft.schema)
    beside = parse_baselines(one.beside, str(content.get("method")))
    plan = Simulation(draft, loaded, one.setting, one.seeds[0], repeat, encryption, beside)
    identity = f"{one.run_id('cell', Cell(()), plan.seed)} {repeat} {encryption}"
    store = None if out is None else RunStore(out, identity, resume)
    workers = place.jobs or (1 if place.engine == "local" else 0)
    engine = make_engine(place.engine, workers, place.address, place.device)
    with running(engine), show_progress() as progress:
        outcome = simulate(plan, progress, lambda: int(time.time()), engine=engine, store=store)
    if out is not None and store is not None:
        save(out, plan, outcome)
        store.close()
    if as_json:
        print_json(summarise(plan, outcome))
        return
    _print_simulation(summarise(plan, outcome), outcome)
    if out is not None:
        print_line(f"Results, CSV and Markdown are in {out}.")


def _print_simulation(summary: Mapping[str, Any], outcome: SimulatedRuns) -> None:
    apart = ("accuracy", "held_out", "accuracy_by_domain", "baselines", "table", "cells")  # shown by themselves, below
    fields = {key: value for key, value in summary.items() if key not in apart and value not in (None, [])}
    sizes, scores = outcome.sizes.values(), [run.scores for run in outcome.runs]
    fields["sites"] = f"{len(sizes)} with {min(sizes)} to {max(sizes)} records"
    fields["epsilon"] = None if summary["epsilon"] is None else cost(summary["epsilon"])
    for name, words in NAMES.items():
        if any(name in one.figures for one in scores):
            fields[words] = [number_text(one.figures[name]) for one in scores if name in one.figures]
    by_domain = [one.accuracies for one in scores if one.accuracies]
    names = dict.fromkeys(domain for shares in by_domain for domain in shares)
    for domain in names if len(names) > 1 else ():
        fields[f"accuracy, {domain}"] = [f"{shares[domain]:.4g}" for shares in by_domain if domain in shares]
    print_fields(fields, title="Simulation", as_json=False)
    texts = {one.column: [text for text, _ in one.texts.most_common(3)] for one in outcome.cells}
    odd = [row | {"such as": texts[row["column"]]} for row in summary["cells"] if row["out of bounds"] or row["match nothing"]]
    if odd:
        odd.sort(key=lambda row: -row["match nothing"])
        print_rows(odd[:20], title="Cells that the schema does not expect, for the eyes of the records' owner", as_json=False)
    rows = [row | {key: number_text(row[key], 5) for key in ("mean", "std", "std_error")} for row in summary["table"]]
    for row in rows:
        if row["runs"] == 1:
            row["std"] = ""  # one run shows no spread
    print_rows(
        rows, title="Results over all runs", as_json=False, empty="No estimates: --holdout 0.3 scores a model, --out keeps it."
    )
    known = [name for name in NAMES if any(name in one.scores.figures for one in outcome.beside.values())]
    baselines = [
        {
            "records": BASELINES[kind],
            **{NAMES[name]: number_text(one.scores.figures[name]) if name in one.scores.figures else "" for name in known},
            "note": one.note,
        }
        for kind, one in outcome.beside.items()
    ]
    if baselines:
        print_rows(baselines, title="Beside it, on the same test records", as_json=False)


def simulate_sweep(
    sweep: Sweep, encryption: bool | None, repeat: int, place: Place, out: Path | None, resume: bool, as_json: bool
) -> None:
    """Run a sweep, and show its table."""
    from veilsum_deploy.simulation.evaluate import check_sweep, evaluate
    from veilsum_deploy.simulation.plots import require_matplotlib
    from veilsum_deploy.simulation.tables import legend, problems, table_rows

    check_sweep(sweep, encryption=encryption, repeat=repeat)
    if out is not None:
        require_matplotlib()
    engine = make_engine(place.engine, place.jobs or 0, place.address, place.device)
    with running(engine), show_progress() as progress:
        results = evaluate(sweep, out, engine, progress, resume=resume)
    if as_json:
        print_json(results.to_json())
    else:
        print_rows(table_rows(sweep, results.rows), title=results.title, as_json=False)
        for line in [*results.about, "", *legend(sweep), *problems(results.rows)]:
            print_line(line.strip("*"))
        if out is not None:
            print_line(f"Runs, tables and plots are in {out}.")
    if not results.complete:
        raise typer.Exit(EXIT_INTERRUPTED)
    cells = [row for row in results.rows if row.kind == "cell"]
    if all(row.planned == row.statuses.get("refused", 0) + row.statuses.get("failed", 0) for row in cells):
        raise typer.Exit(1)
