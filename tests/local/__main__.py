"""``python -m local``: start everything, run a study, say where to look, stop."""

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from local.deployment import POLL_SECONDS, Deployment, deployed, samples
from local.processes import StoppedError
from local.services import Services, container_ports, read_compose
from veilsum_coordinator.protocol.settings import load_coordinator_config
from veilsum_deploy.demo.directory import claim
from veilsum_node.errors import StateError
from veilsum_node.identity.certificate import load_authority
from veilsum_node.identity.tls import AUTHORITY_FILE
from veilsum_node.process.commands import run
from veilsum_node.process.console import JsonOption, print_fields, print_json, print_line, print_rows
from veilsum_participant.settings.config import load_participant_config
from veilsum_privacy.dossier.ledgers import open_source, spending_fields

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose.yaml"
STUDY = "study"
"""The service that runs one study and ends."""

SCRAPE_SECONDS = 60.0
SPENT = "veilsum_epsilon_spent"
RELEASED = 'sum by (job) (veilsum_rounds_total{outcome="released"})'
INTERRUPTED = 130

app = typer.Typer(add_completion=False)


@app.command()
def main(
    directory: Annotated[
        Path, typer.Option("--directory", help="Working directory; an earlier deployment's is replaced, any other is kept.")
    ] = Path("veilsum-demo-local"),
    compose: Annotated[Path, typer.Option("--compose", help="The compose file.")] = COMPOSE,
    keep: Annotated[bool, typer.Option("--keep", help="Stay up after the study, until Ctrl-C or SIGTERM.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the compose file's services on loopback, run a study, print where to look, stop; status 130 if cut off before."""
    started = time.monotonic()
    loaded = read_compose(compose, os.environ)
    with claim(directory) as claimed:
        raise typer.Exit(_run(Services(loaded, claimed), started, keep=keep, as_json=as_json))


def _run(services: Services, started: float, *, keep: bool, as_json: bool) -> int:
    status = INTERRUPTED
    deployment: Deployment | None = None
    try:
        with deployed(services, _say) as deployment:
            _say("Running a study")
            deployment.task(STUDY)
            _say("Waiting for Prometheus to see it")
            found = _findings(services, _wait_for_scrapes(deployment))
            found["seconds"] = round(time.monotonic() - started, 1)
            if as_json:
                print_json(found)
            else:
                _show(found, stays=keep)
            sys.stdout.flush()
            status = 0
            if keep:
                _say("Everything stays up. Ctrl-C stops it.")
                while True:
                    deployment.processes.check()
                    time.sleep(POLL_SECONDS)
            _say("Stopping")
    except StoppedError as stopped:
        _say(stopped.message)
    unclean = {} if deployment is None else {name: code for name, code in deployment.processes.statuses.items() if code}
    if unclean:
        names = ", ".join(f"{name} (status {code})" for name, code in unclean.items())
        raise StateError(f"Not everything stopped cleanly: {names}.", f"See {services.directory / 'logs'}.")
    _say("Nothing is left running.")
    return status


def _sites(services: Services) -> list[str]:
    return services.of_image("veilsum-participant")


def _wait_for_scrapes(deployment: Deployment) -> dict[str, float]:
    """Wait until Prometheus has seen a release at the coordinator and its cost at every site; returns the cost by site."""
    address = deployment.services.address("prometheus", 9090)
    spent: dict[str, float] = {}

    def seen() -> bool:
        spent.update(samples(address, SPENT, "site"))
        charged = all(spent.get(site, 0.0) > 0 for site in _sites(deployment.services))
        return charged and sum(samples(address, RELEASED, "job").values()) >= 1

    deployment.wait("The study in Prometheus", seen, SCRAPE_SECONDS)
    return spent


def _ledger(services: Services, site: str) -> dict[str, Any]:
    """What a site's own ledger says of its population, verified entry by entry."""
    settings = load_participant_config(services.config(site, "participant.toml"))
    (population,) = {settings.population(name) for name in settings.datasets}
    with open_source(settings.state) as ledger:
        verified = ledger.verify(authority=load_authority(settings.identity / AUTHORITY_FILE))
        fields = spending_fields(ledger, population)
    kept = {key: fields[key] for key in ("population", "epsilon", "delta", "spent", "releases")}
    return {**kept, "entries": verified.entries, "ledger": settings.state}


def _findings(services: Services, scraped: dict[str, float]) -> dict[str, Any]:
    """Everything that is shown, as plain values."""
    published = {name: services.all[name] for name in services.here if services.all[name].get("ports")}
    metrics = {name: load_participant_config(services.config(name, "participant.toml")).metrics for name in _sites(services)}
    metrics["coordinator"] = load_coordinator_config(services.config("coordinator", "coordinator.toml")).metrics
    secrets = services.volume("prometheus-files")
    return {
        "sites": {name: {**_ledger(services, name), "scraped": scraped.get(name)} for name in _sites(services)},
        "result": services.volume("results") / "first-study",
        "pages": {
            name: f"http://{services.address(name, port)}"
            for name, service in published.items()
            for port in container_ports(service)
        },
        "metrics": {name: f"https://{settings.listen}/metrics" for name, settings in metrics.items() if settings is not None},
        "token": secrets / "token",
        "authority": secrets / "authority.pem",
        "left_out": services.left_out,
        "directory": services.directory,
    }


def _show(found: dict[str, Any], *, stays: bool) -> None:
    """Print the findings for people; ``stays``: whether everything goes on running, so that the addresses are of use."""
    rows = [
        {
            "site": name,
            "population": fields["population"],
            "epsilon spent": f"{fields['spent']:.4g} of {fields['epsilon']:g}",
            "as Prometheus saw it": f"{fields['scraped']:.4g}",
            "entries, all verified": fields["entries"],
            **({"metrics": found["metrics"].get(name, "")} if stays else {}),
        }
        for name, fields in found["sites"].items()
    ]
    print_rows(rows, title="What the study cost", as_json=False)
    files = {
        "the study's result": found["result"],
        "logs": found["directory"] / "logs",
        "configurations": found["directory"] / "configs",
        "token for all metrics": found["token"],
        "their authority": found["authority"],
        "left out, no program here": ", ".join(found["left_out"]),
    }
    addresses = {**found["pages"], "metrics of the coordinator": found["metrics"]["coordinator"]}
    print_fields({**addresses, **files} if stays else files, title="Where to look", as_json=False)
    if stays:
        curl = f'curl --cacert {found["authority"]} -H "Authorization: Bearer $(cat {found["token"]})"'
        print_line(f"For example: {curl} {found['metrics']['coordinator']}")
    else:
        named = ", ".join(f"{name} was at {url}" for name, url in addresses.items())
        print_line(f'{named}. To look at them while they run: make deploy-local ARGS="--keep"')


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(app)
