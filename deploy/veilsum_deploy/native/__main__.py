"""``python -m veilsum_deploy.native``: what `make deploy-local` runs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from veilsum_deploy.demo.directory import claim
from veilsum_deploy.native.compose import Compose, load_compose
from veilsum_deploy.native.processes import StoppedError
from veilsum_deploy.native.report import findings, show, wait_for_scrapes
from veilsum_deploy.native.run import Deployment, deployed
from veilsum_node.errors import StateError
from veilsum_node.process.commands import run
from veilsum_node.process.console import JsonOption, print_json

STUDY = "study"
"""The service that runs one study and ends."""

INTERRUPTED = 130
POLL_SECONDS = 0.5

app = typer.Typer(add_completion=False)


@app.command()
def main(
    directory: Annotated[
        Path, typer.Option("--directory", help="Working directory; a former deployment's is replaced, any other kept.")
    ] = Path("veilsum-demo-local"),
    compose: Annotated[Path, typer.Option("--compose", help="The compose file.")] = Path("deploy/compose.yaml"),
    keep: Annotated[bool, typer.Option("--keep", help="Stay up after the study, until Ctrl-C or SIGTERM.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the compose file's services on loopback, run a study, print where to look, stop; status 130 if cut off before."""
    started = time.monotonic()
    loaded = load_compose(compose, os.environ)
    with claim(directory) as claimed:
        raise typer.Exit(_run(loaded, claimed, started, keep=keep, as_json=as_json))


def _run(compose: Compose, directory: Path, started: float, *, keep: bool, as_json: bool) -> int:
    status = INTERRUPTED
    deployment: Deployment | None = None
    try:
        with deployed(compose, directory, _say) as deployment:
            found = _try_out(deployment)
            found["seconds"] = round(time.monotonic() - started, 1)
            if as_json:
                print_json(found)
            else:
                show(found, stays=keep)
            sys.stdout.flush()
            status = 0
            if keep:
                _stay(deployment)
            _say("Stopping")
    except StoppedError as stopped:
        _say(stopped.message)
    unclean = {} if deployment is None else {name: code for name, code in deployment.processes.statuses.items() if code}
    if unclean:
        names = ", ".join(f"{name} (status {code})" for name, code in unclean.items())
        raise StateError(f"Not everything stopped cleanly: {names}.", f"See {directory / 'logs'}.")
    _say("Nothing is left running.")
    return status


def _try_out(deployment: Deployment) -> dict[str, Any]:
    _say("Running a study")
    deployment.task(STUDY)
    _say("Waiting for Prometheus to see it")
    return findings(deployment, wait_for_scrapes(deployment))


def _stay(deployment: Deployment) -> None:
    """Wait for a signal; a service that ends by itself is an error."""
    _say("Everything stays up. Ctrl-C stops it.")
    while True:
        deployment.processes.check()
        time.sleep(POLL_SECONDS)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(app)
