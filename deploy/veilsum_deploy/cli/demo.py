"""The ``veilsum demo`` command."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from veilsum_coordinator.results.reproduction import choose_common_loops
from veilsum_deploy.demo.processes import load
from veilsum_node.errors import Misuse
from veilsum_node.process.console import JsonOption, print_json
from veilsum_node.process.memory import loading

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    directory: Annotated[
        Path, typer.Option("--directory", help="Working directory; an earlier demo's is replaced, any other is kept.")
    ] = Path("veilsum-demo"),
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder with one CSV, Parquet or npz file for each site, in place of the demo's."),
    ] = None,
    schema: Annotated[Path | None, typer.Option("--schema", help="Schema of --data; default: schema.toml in it.")] = None,
    study: Annotated[
        list[Path] | None,
        typer.Option("--study", help="A study.toml to run in place of the demo's studies; may be repeated. Needs --data."),
    ] = None,
    interrupt: Annotated[
        str | None,
        typer.Option(
            "--interrupt", help="Site that is killed in every study of ten rounds or more, and comes back. Needs --study."
        ),
    ] = None,
    confined: Annotated[
        bool,
        typer.Option("--confined", help='Run every hospital as processes that are confined, as isolation = "processes" does.'),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a federation on this machine: a coordinator and four hospitals as real processes over mutual TLS."""
    if schema is not None and data is None:
        raise Misuse("--schema describes --data.", "State both.")
    if study and data is None:
        raise Misuse("--study runs on your own data.", "State --data as well.")
    if interrupt is not None and not study:
        raise Misuse("--interrupt is for your own studies.", "State --study as well.")
    isolation = "processes" if confined else "none"
    started = time.monotonic()
    choose_common_loops()  # results are verified by computing them again
    load()
    with loading():  # beside what the server loads
        from veilsum.cli.display import show_progress
        from veilsum_deploy.demo.directory import DEMO_TERMS, claim
        from veilsum_deploy.demo.findings import findings
        from veilsum_deploy.demo.hospitals import folder_hospitals, packaged_hospitals
        from veilsum_deploy.demo.report import print_findings, print_studies
        from veilsum_deploy.demo.run import run_trial
        from veilsum_deploy.demo.studies import run_own_studies

    with claim(directory) as claimed:
        with show_progress() as progress:
            hospitals = packaged_hospitals() if data is None else folder_hospitals(data, schema, trains=not study)
            if study:
                found = run_own_studies(claimed, hospitals, study, progress, lambda: int(time.time()), interrupt, isolation)
            else:
                terms = replace(DEMO_TERMS, isolation=isolation)
                trial = run_trial(claimed, hospitals, progress, lambda: int(time.time()), terms)
                found = findings(trial, claimed, time.monotonic() - started)
        if as_json:
            print_json(found)
        elif study:
            print_studies(found)
        else:
            print_findings(found)
