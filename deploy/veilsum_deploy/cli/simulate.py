"""The ``veilsum simulate`` command."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from veilsum_deploy.cli.output import JsonOption, print_fields, print_json, print_line, print_rows
from veilsum_deploy.cli.steps import show_progress
from veilsum_deploy.datasets import PACKAGED, packaged_dataset, read_dataset
from veilsum_deploy.simulation.report import check_empty, save, summarise
from veilsum_deploy.simulation.study import Simulation, simulate, simulation_request
from veilsum_privacy.errors import Misuse

app = typer.Typer(add_completion=False)


@app.command()
def simulate_study(
    study: Annotated[Path, typer.Argument(help="The study.toml; with --dataset it may leave out the schema.")],
    data: Annotated[Path | None, typer.Option("--data", help="CSV, Parquet or npz file with all records.")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help=f"A packaged data set: {', '.join(PACKAGED)}.")] = None,
    sites: Annotated[int, typer.Option("--sites", min=2, max=1024, help="Number of simulated sites.")] = 4,
    partition: Annotated[str, typer.Option("--partition", help="iid, uneven, or dirichlet:ALPHA.")] = "iid",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the split among sites; never of the noise.")] = 0,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Runs, each with fresh noise.")] = 1,
    holdout: Annotated[float, typer.Option("--holdout", help="Share of records to test a classifier on.")] = 0.0,
    encryption: Annotated[bool, typer.Option("--encryption/--no-encryption", help="Run the whole protocol.")] = True,
    out: Annotated[Path | None, typer.Option("--out", help="New directory for results and tables.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Try a study on simulated sites in this process, with the real noise and the real encryption."""
    if (data is None) == (dataset is None):
        raise Misuse("State either --data or --dataset.", f"Packaged data sets: {', '.join(PACKAGED)}.")
    if out is not None:
        check_empty(out)
    packaged = packaged_dataset(dataset) if dataset is not None else None
    request = simulation_request(study, packaged)
    if request.data is None:
        raise Misuse("The study has no schema.")
    table = packaged if packaged is not None else read_dataset(Path(str(data)), request.data, request.dataset)
    table = type(table)(request.dataset, request.data, table.table)
    plan = Simulation(request, table, sites, partition, seed, repeat, encryption, holdout)
    with show_progress() as progress:
        outcome = simulate(plan, progress, lambda: int(time.time()))
    if out is not None:
        save(out, plan, outcome)
    summary = summarise(plan, outcome)
    if as_json:
        print_json(summary)
        return
    rows = summary.pop("table")
    summary["sites"] = f"{len(outcome.sizes)} with {min(outcome.sizes.values())} to {max(outcome.sizes.values())} records"
    if summary["epsilon"] is not None:
        summary["epsilon"] = f"{summary['epsilon']:.4g}"
    if summary["accuracy"] is None:
        del summary["accuracy"]
    else:
        summary["accuracy"] = [f"{share:.4g}" for share in summary["accuracy"]]
    print_fields(summary, title="Simulation", as_json=False)
    for row in rows:
        row.update({key: f"{row[key]:.5g}" for key in ("mean", "std", "std_error")})
        if row["runs"] == 1:
            row["std"] = ""  # one run shows no spread
    print_rows(rows, title="Results over all runs", as_json=False, empty="The result has no estimates; see its bundle.")
    if out is not None:
        print_line(f"Results, CSV and Markdown are in {out}.")
