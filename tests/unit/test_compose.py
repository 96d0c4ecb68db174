"""The compose file: valid by the engine's own front end and by our loader, hardened, and consistent with what it mounts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.tools import need_tool
from veilsum.compile import load_study_request
from veilsum_coordinator.protocol.settings import load_coordinator_config
from veilsum_deploy.native.compose import Compose, load_compose
from veilsum_deploy.native.places import Places, free_ports, lay_out
from veilsum_deploy.native.programs import TOOLS, image_name, runnable
from veilsum_deploy.native.provision import provision
from veilsum_node.errors import ConfigurationError, Misuse
from veilsum_participant.config import load_participant_config

DEPLOY = Path(__file__).parents[2] / "deploy"
FILE = DEPLOY / "compose.yaml"
SITES = ("north", "east", "south", "west")
LONG_RUNNING = {"database", "coordinator", *SITES, "prometheus", "alertmanager", "webhook", "grafana"}


@pytest.fixture(scope="module")
def compose() -> Compose:
    return load_compose(FILE, {})


def services_here(compose: Compose) -> tuple[list[str], list[str]]:
    """Services that run on this machine and those left out; needs the programs that they start."""
    for program in TOOLS.values():
        need_tool(program)
    return runnable(compose)


def places_of(compose: Compose, directory: Path) -> Places:
    here, _ = services_here(compose)
    return lay_out(compose, directory, here)


# -- by the engine's own front end -----------------------------------------------------------------------------------------


def test_docker_compose_accepts_it_and_reads_it_as_we_do(compose: Compose) -> None:
    program = Path(sys.executable).with_name("docker-compose")  # a development tool, as the linters are
    command = [program, "--file", FILE, "--profile", "*", "config", "--format", "json"]
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=clean)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    theirs = json.loads(done.stdout)["services"]
    assert set(theirs) == set(compose.services)
    for name, service in compose.services.items():
        stated = theirs[name]
        assert tuple(stated["command"] or ()) == service.command
        assert tuple(stated["entrypoint"] or ()) == service.entrypoint
        assert stated.get("environment", {}) == service.environment
        assert stated["image"] == service.image
        assert {item["target"]: item["source"] for item in stated.get("volumes", ()) if item["type"] == "volume"} == {
            item.target: item.source for item in service.volumes if item.type == "volume"
        }
        assert {key: item["condition"] for key, item in stated.get("depends_on", {}).items()} == {
            **{key: item.condition for key, item in service.depends_on.items()},
            **({service.host(): "service_started"} if service.host() else {}),
        }


def test_the_hospitals_file_is_valid_and_as_hardened(compose: Compose) -> None:
    program = Path(sys.executable).with_name("docker-compose")
    command = [program, "--file", DEPLOY / "compose" / "hospital.yaml", "config", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"HOME": "/nonexistent"})
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    (service,) = json.loads(done.stdout)["services"].values()
    like = compose.services["north"]
    for key in ("image", "user", "read_only", "pids_limit"):
        assert service[key] == getattr(like, key), key
    for key in ("command", "cap_drop", "security_opt", "tmpfs"):
        assert tuple(service[key]) == getattr(like, key), key
    assert like.healthcheck is not None
    assert tuple(service["healthcheck"]["test"]) == like.healthcheck.test
    assert "ports" not in service
    assert {item["target"]: item.get("read_only", False) for item in service["volumes"]} == {
        "/etc/veilsum": True,
        "/data": True,
        "/var/lib/veilsum": False,
    }


# -- what it promises ------------------------------------------------------------------------------------------------------


def test_every_service_is_hardened(compose: Compose) -> None:
    for name, service in compose.services.items():
        assert service.read_only, name
        assert service.cap_drop == ("ALL",), name
        assert service.security_opt == ("no-new-privileges:true",), name
        assert service.cap_add == (("CHOWN",) if name == "provision" else ()), name
        assert service.user.startswith("0:") == (name == "provision"), name
        if name in LONG_RUNNING:
            assert service.restart == "unless-stopped", name
            assert service.pids_limit, name
            assert service.mem_limit, name


def test_a_participant_publishes_nothing_and_only_loopback_is_published(compose: Compose) -> None:
    for name in SITES:
        assert compose.services[name].ports == ()
        assert all(compose.networks[network].internal for network in compose.services[name].networks)
    for name, service in compose.services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.ports), name
    assert compose.services["provision"].network_mode == "none"
    database = [name for name, service in compose.services.items() if "database" in service.networks]
    assert sorted(database) == ["coordinator", "database"]


def test_keys_are_mounted_by_their_owner_only_and_read_only(compose: Compose) -> None:
    mounts: dict[str, set[str]] = {}
    for name, service in compose.services.items():
        for mount in service.volumes:
            if mount.type == "bind":
                assert mount.read_only, (name, mount.source)
            elif name != "provision":
                mounts.setdefault(mount.source, set()).add(name)
                assert mount.read_only == mount.source.endswith("-files"), (name, mount.source)
    assert "authority" not in mounts
    assert {volume for volume, users in mounts.items() if len(users) > 1} == set()
    assert set(mounts) | {"authority"} == set(compose.volumes)


def test_no_secret_stands_in_it() -> None:
    text = FILE.read_text()
    for line in text.splitlines():
        if re.search("password|secret|token", line, re.IGNORECASE) and ":" in line and not line.lstrip().startswith("#"):
            assert re.search(r"_FILE: /run/secrets/|target: /run/secrets|passfile=", line), line


def test_health_is_checked_wherever_something_waits_for_it(compose: Compose) -> None:
    waited = {
        other for service in compose.services.values() for other, needed in service.depends_on.items()
        if needed.condition == "service_healthy"
    }  # fmt: skip
    for name in LONG_RUNNING - {"webhook"}:
        check = compose.services[name].healthcheck
        assert check is not None, name
        assert check.test[0] == "CMD", f"{name}: needs no shell"
    assert {"database", "coordinator", *SITES} <= waited


def test_versions_and_images_are_those_of_the_project(compose: Compose) -> None:
    version = re.search(r'^version = "(.*)"', (DEPLOY.parent / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    for service in compose.services.values():
        if service.build is not None:
            assert service.image.endswith(f":{version[1]}")
            assert (compose.directory / service.build.context / service.build.dockerfile).is_file()
            dockerfile = (compose.directory / service.build.context / service.build.dockerfile).read_text()
            for key, value in service.build.args.items():
                assert re.search(rf'^ARG {key}="?{re.escape(value)}"?$', dockerfile, re.MULTILINE) or key == "REVISION", key
        else:
            assert re.search(r":v?\d+\.\d+(\.\d+)?", service.image), f"{service.image} is pinned to no version"


# -- the files that it mounts ----------------------------------------------------------------------------------------------


def test_the_mounted_configurations_load_with_what_is_provisioned(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = places_of(compose, tmp_path)
    places.furnish()
    rewrite = places.rewriter("provision")
    into = dict(
        rewrite(word).removeprefix("--into=").split("=", 1) for word in compose.services["provision"].command if "=/" in word
    )
    assert provision({name: Path(path) for name, path in into.items()}, ["localhost"], None, lambda: 1_800_000_000)
    for name in SITES:
        for key, value in compose.services[name].environment.items():
            monkeypatch.setenv(key, places.rewriter(name)(value))
        config = load_participant_config(places.config(name, "participant.toml"))
        assert set(config.policy.trusted) == set(SITES)
        assert config.coordinator == places.address("coordinator", 8461)
        assert config.metrics is not None
        paths = [
            *(dataset.path for dataset in config.datasets.values()),
            config.metrics.certificate,
            config.metrics.token_file,
        ]
        assert all(path is not None and path.is_file() for path in paths)
        assert config.state.parent == places.volume(f"{name}-state")
        for key in compose.services[name].environment:
            monkeypatch.delenv(key)
    assert len({(places.volume(f"{name}-files") / "data" / "records.csv").read_bytes() for name in SITES}) == len(SITES)
    for key, value in compose.services["coordinator"].environment.items():
        monkeypatch.setenv(key, places.rewriter("coordinator")(value))
    hub = load_coordinator_config(places.config("coordinator", "coordinator.toml"))
    assert hub.database_place.startswith(f"postgresql://veilsum@{places.address('database', 5432)}/veilsum?passfile=/")
    password = (places.volume("database-files") / "password").read_text()
    assert Path(hub.database_place.partition("passfile=")[2]).read_text() == f"*:*:*:veilsum:{password}\n"
    request = load_study_request(places.config("study", "study.toml"))
    assert request.dataset in config.datasets
    assert request.method in config.policy.methods
    assert request.data is not None


def test_prometheus_scrapes_every_endpoint_of_ours_and_the_rules_are_the_shipped_ones(
    compose: Compose, tmp_path: Path
) -> None:
    places = places_of(compose, tmp_path)
    places.furnish()
    stated = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
    targets = {target for job in stated["scrape_configs"] for group in job["static_configs"] for target in group["targets"]}
    ours = {
        f"{name}:{port}"
        for name, service in compose.services.items()
        if image_name(service).startswith("veilsum-") and name != "webhook"
        for port in service.container_ports()
        if port != 8461
    }
    assert targets == ours
    assert [job["job_name"] for job in stated["scrape_configs"]] == ["veilsum-coordinator", "veilsum-participant"]
    for group in stated["scrape_configs"][1]["static_configs"]:
        assert group["targets"] == [f"{group['labels']['site']}:9465"]
    for file in ("token", "authority.pem"):
        path = places.volume("prometheus-files") / file
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    copy = places.config("prometheus", "prometheus.yml")
    assert str(DEPLOY / "prometheus" / "rules") in copy.read_text()
    done = subprocess.run([need_tool("promtool"), "check", "config", copy], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# -- the loader ------------------------------------------------------------------------------------------------------------


def altered(tmp_path: Path, change: Any) -> Path:
    """A copy of the file in which one thing is wrong."""
    shutil.copytree(DEPLOY, tmp_path / "deploy", ignore=shutil.ignore_patterns("veilsum_deploy", "evaluations", "helm"))
    path = tmp_path / "deploy" / "compose.yaml"
    raw = yaml.safe_load(path.read_text())
    change(raw)
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["services"]["north"].update(privileged=True), "privileged"),
        (lambda raw: raw["services"]["north"].update(depends_on={"nobody": {"condition": "service_healthy"}}), "nobody"),
        (lambda raw: raw["services"]["north"]["networks"].append("abroad"), "abroad"),
        (lambda raw: raw["volumes"].pop("north-state"), "north-state"),
        (lambda raw: raw["configs"].pop("study.toml"), r"study\.toml"),
        (lambda raw: raw["configs"]["study.toml"].update(file="./nothing.toml"), r"nothing\.toml"),
        (lambda raw: raw["services"]["grafana"]["volumes"][0].update(source="./nothing"), "nothing"),
        (lambda raw: raw["services"]["webhook"].update(network_mode="service:nobody"), "nobody"),
        (lambda raw: raw["services"]["north"]["healthcheck"].update(interval="soon"), "30s"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_compose(altered(tmp_path, change), {})


def test_services_that_wait_for_one_another_are_refused(tmp_path: Path) -> None:
    def change(raw: Any) -> None:
        raw["services"]["database"]["depends_on"] = {"north": {"condition": "service_started"}}

    with pytest.raises(ConfigurationError, match="wait for one another"):
        load_compose(altered(tmp_path, change), {}).ordered()


@pytest.mark.parametrize("text", ["[", "- a", "services: {}", "\x00"])
def test_what_is_no_compose_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError):
        load_compose(path, {})
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_compose(tmp_path / "absent.yaml", {})


def test_variables_are_filled_in(compose: Compose) -> None:
    assert load_compose(FILE, {"VEILSUM_VERSION": "9"}).services["north"].image == "veilsum-participant:9"
    assert load_compose(FILE, {"VEILSUM_VERSION": ""}) == compose
    digest = "@sha256:" + "0" * 64
    pinned = load_compose(FILE, {"POSTGRES_DIGEST": digest}).services["database"]
    assert pinned.image.endswith(digest)
    assert image_name(pinned) == "postgres"


# -- paths and addresses ---------------------------------------------------------------------------------------------------


def test_texts_are_rewritten_to_this_machines_places(compose: Compose, tmp_path: Path) -> None:
    places = places_of(compose, tmp_path)
    hub, north = places.rewriter("coordinator"), places.rewriter("north")
    volumes = tmp_path / "volumes"
    assert hub('listen = "0.0.0.0:8461"') == f'listen = "{places.address("coordinator", 8461)}"'
    assert north("coordinator:8461 north:9465 0.0.0.0:9465") == (
        f"{places.address('coordinator', 8461)} {places.address('north', 9465)} {places.address('north', 9465)}"
    )
    assert north("/run/veilsum/peers.toml") == f"{volumes}/north-files/peers.toml"
    assert hub("/run/veilsum") == f"{volumes}/coordinator-files"
    for same in ("/run/veilsum2", "/other/run/veilsum", "0.0.0.0:84611", "xcoordinator:8461", "coordinator:9999", "/run"):
        assert hub(same) == same
    alertmanager, webhook = places.rewriter("alertmanager"), places.rewriter("webhook")  # they share one loopback
    assert alertmanager("http://127.0.0.1:9095/x") == f"http://{places.address('webhook', 9095)}/x"
    assert webhook("127.0.0.1:9095") == places.address("webhook", 9095)
    assert north("127.0.0.1:9095") == "127.0.0.1:9095"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="abc./:-_=\"' 0123456789", max_size=60))
def test_a_text_that_names_no_place_stays(compose: Compose, text: str) -> None:
    rewrite = places_of(compose, Path("/scratch")).rewriter("north")
    if not re.search(r"0\.0\.0\.0:|127\.0\.0\.1:", text):
        assert rewrite(text) == text


def test_ports_are_all_different_and_the_directorys_name_is_plain(compose: Compose, tmp_path: Path) -> None:
    assert len(set(free_ports(64))) == 64
    with pytest.raises(Misuse, match="characters"):
        lay_out(compose, tmp_path / "a b", ["north"])


def test_what_is_left_out_is_grafana_alone(compose: Compose) -> None:
    here, out = services_here(compose)
    assert out == ["grafana"]
    assert set(here) == set(compose.services) - {"grafana"}
    for name in here:
        assert all(here.index(other) < here.index(name) for other in compose.services[name].depends_on)
