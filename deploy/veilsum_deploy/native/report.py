"""What a local deployment did and where to look at it: from the sites' ledgers, and from what Prometheus scraped of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from veilsum_coordinator.protocol.settings import load_coordinator_config
from veilsum_deploy.native.compose import Compose
from veilsum_deploy.native.places import mounted
from veilsum_deploy.native.programs import image_name
from veilsum_deploy.native.run import Deployment
from veilsum_deploy.native.watching import instant, wait_for
from veilsum_node.identity.tls import AUTHORITY_FILE
from veilsum_node.process.console import print_fields, print_line, print_rows
from veilsum_participant.config import load_participant_config
from veilsum_participant.ledgers import load_authority, open_source, spending_fields

PARTICIPANT, PROMETHEUS = "veilsum-participant", "prom/prometheus"
SCRAPE_SECONDS = 60.0

SPENT = "veilsum_epsilon_spent"
RELEASED = 'sum by (job) (veilsum_rounds_total{outcome="released"})'
CONFIG = "participant.toml"


def of_image(compose: Compose, image: str) -> list[str]:
    """Names of the services of an image."""
    return [name for name, service in compose.services.items() if image_name(service) == image]


def wait_for_scrapes(deployment: Deployment) -> dict[str, float]:
    """Wait until Prometheus has seen a release at the coordinator and its cost at every site; returns the cost by site.

    Raises:
        StateError: it has not within :data:`SCRAPE_SECONDS`, or a service ended.
    """
    address = _prometheus(deployment)
    sites = of_image(deployment.places.compose, PARTICIPANT)
    spent: dict[str, float] = {}

    def seen() -> bool:
        spent.update(instant(address, SPENT, "site"))
        return all(spent.get(site, 0.0) > 0 for site in sites) and sum(instant(address, RELEASED, "job").values()) >= 1

    wait_for("The study in Prometheus", seen, SCRAPE_SECONDS, deployment.processes.check)
    return spent


def ledgers(deployment: Deployment) -> dict[str, dict[str, Any]]:
    """What each site's own ledger says of its populations, verified entry by entry.

    Raises:
        HostileInput: a ledger does not verify.
    """
    found: dict[str, dict[str, Any]] = {}
    for site in of_image(deployment.places.compose, PARTICIPANT):
        settings = load_participant_config(deployment.places.config(site, CONFIG))
        with open_source(settings.state) as ledger:
            verified = ledger.verify(authority=load_authority(settings.identity / AUTHORITY_FILE))
            for population in sorted({settings.population(name) for name in settings.datasets}):
                fields = spending_fields(ledger, population)
                kept = {key: fields[key] for key in ("population", "epsilon", "delta", "spent", "releases")}
                found[site] = {**kept, "entries": verified.entries, "ledger": settings.state}
    return found


def findings(deployment: Deployment, scraped: Mapping[str, float]) -> dict[str, Any]:
    """Everything that is shown, as plain values."""
    places, compose = deployment.places, deployment.places.compose
    published = {name: service for name, service in compose.services.items() if service.ports and name in places.services}
    pages = {
        name: f"http://{places.address(name, port)}"
        for name, service in published.items()
        for port in service.container_ports()
    }
    listens = {name: load_participant_config(places.config(name, CONFIG)).metrics for name in of_image(compose, PARTICIPANT)}
    listens["coordinator"] = load_coordinator_config(places.config("coordinator", "coordinator.toml")).metrics
    secrets = places.volume(mounted(compose.services["prometheus"], "/run/secrets"))
    return {
        "sites": {name: {**fields, "scraped": scraped.get(name)} for name, fields in ledgers(deployment).items()},
        "result": places.volume("results") / "first-study",
        "pages": pages,
        "metrics": {name: f"https://{metrics.listen}/metrics" for name, metrics in listens.items() if metrics is not None},
        "token": secrets / "token",
        "authority": secrets / "authority.pem",
        "left_out": list(deployment.left_out),
        "directory": places.directory,
    }


def show(found: Mapping[str, Any], *, stays: bool) -> None:
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


def _prometheus(deployment: Deployment) -> str:
    (name,) = of_image(deployment.places.compose, PROMETHEUS)
    (port,) = deployment.places.compose.services[name].container_ports()
    return deployment.places.address(name, port)
