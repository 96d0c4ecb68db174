"""The compose file: valid by Compose's own front end, hardened, consistent with what it mounts; its places on this machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from local.services import Services, container_ports, free_ports, image_name, read_compose, seconds
from support.tools import need_tool
from veilsum.compile import load_study_request
from veilsum_coordinator.protocol.settings import load_coordinator_config
from veilsum_deploy.provision import provision
from veilsum_node.errors import ConfigurationError, Misuse, StateError
from veilsum_participant.settings.config import load_participant_config

DEPLOY = Path(__file__).parents[2] / "deploy"
FILE = DEPLOY / "compose.yaml"
SITES = ("north", "east", "south", "west")
LONG_RUNNING = {"database", "coordinator", *SITES, "prometheus", "alertmanager", "webhook", "grafana"}


@pytest.fixture(scope="module")
def file() -> dict[str, Any]:
    return read_compose(FILE, {})


@pytest.fixture(scope="module")
def compose(file: dict[str, Any]) -> dict[str, Any]:
    """What the file says of each service."""
    services: dict[str, Any] = file["services"]
    return services


@pytest.fixture
def places(file: dict[str, Any], tmp_path: Path) -> Services:
    for tool in ("prometheus", "alertmanager"):
        need_tool(tool)
    return Services(file, tmp_path)


# -- by Compose's own front end --------------------------------------------------------------------------------------------


def test_the_hospitals_file_is_valid_and_as_hardened(compose: dict[str, Any]) -> None:
    (service,) = read_compose(DEPLOY / "compose" / "hospital.yaml", {})["services"].values()
    like = compose["north"]
    for key in ("image", "user", "read_only", "pids_limit", "command", "cap_drop", "security_opt", "tmpfs"):
        assert service[key] == like[key], key
    assert service["healthcheck"]["test"] == like["healthcheck"]["test"]
    assert "ports" not in service
    assert {item["target"]: item.get("read_only", False) for item in service["volumes"]} == {
        "/etc/veilsum": True,
        "/data": True,
        "/var/lib/veilsum": False,
    }


def test_variables_are_filled_in(compose: dict[str, Any]) -> None:
    assert read_compose(FILE, {"VEILSUM_VERSION": "9"})["services"]["north"]["image"] == "veilsum-participant:9"
    assert read_compose(FILE, {"VEILSUM_VERSION": ""})["services"] == compose
    digest = "@sha256:" + "0" * 64
    pinned = read_compose(FILE, {"POSTGRES_DIGEST": digest})["services"]["database"]
    assert pinned["image"].endswith(digest)
    assert image_name(pinned) == "postgres"


@pytest.mark.parametrize("text", ["[", "- a", "services: {a: {image: b, sudo: true}}"])
def test_what_is_no_compose_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "compose.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match="not a compose file"):
        read_compose(tmp_path / "compose.yaml", {})


# -- what it promises ------------------------------------------------------------------------------------------------------


def test_every_service_is_hardened(compose: dict[str, Any]) -> None:
    for name, service in compose.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service.get("cap_add", []) == (["CHOWN"] if name == "provision" else []), name
        assert service["user"].startswith("0:") == (name == "provision"), name
        if name in LONG_RUNNING:
            assert service["restart"] == "unless-stopped", name
            assert service["pids_limit"], name
            assert service["mem_limit"], name


def test_a_participant_publishes_nothing_and_only_loopback_is_published(file: dict[str, Any], compose: dict[str, Any]) -> None:
    for name in SITES:
        assert "ports" not in compose[name]
        assert all(file["networks"][network].get("internal") for network in compose[name]["networks"])
    for name, service in compose.items():
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", ())), name
    assert compose["provision"]["network_mode"] == "none"
    database = [name for name, service in compose.items() if "database" in service.get("networks", ())]
    assert sorted(database) == ["coordinator", "database"]


def test_keys_are_mounted_by_their_owner_only_and_read_only(file: dict[str, Any], compose: dict[str, Any]) -> None:
    mounts: dict[str, set[str]] = {}
    for name, service in compose.items():
        for mount in service.get("volumes", ()):
            read_only = mount.get("read_only", False)
            if mount["type"] == "bind":
                assert read_only, (name, mount["source"])
                assert Path(mount["source"]).exists(), mount["source"]
            elif name != "provision":
                mounts.setdefault(mount["source"], set()).add(name)
                assert read_only == mount["source"].endswith("-files"), (name, mount["source"])
    assert "authority" not in mounts
    assert {volume for volume, users in mounts.items() if len(users) > 1} == set()
    assert set(mounts) | {"authority"} == set(file["volumes"])
    assert all(Path(config["file"]).is_file() for config in file["configs"].values())


def test_no_secret_stands_in_it() -> None:
    text = FILE.read_text()
    for line in text.splitlines():
        if re.search("password|secret|token", line, re.IGNORECASE) and ":" in line and not line.lstrip().startswith("#"):
            assert re.search(r"_FILE: /run/secrets/|target: /run/secrets|passfile=", line), line


def test_health_is_checked_wherever_something_waits_for_it(compose: dict[str, Any]) -> None:
    waited = {
        other for service in compose.values() for other, needed in service.get("depends_on", {}).items()
        if needed["condition"] == "service_healthy"
    }  # fmt: skip
    for name in LONG_RUNNING - {"webhook"}:
        assert compose[name]["healthcheck"]["test"][0] == "CMD", f"{name}: needs no shell"
    assert {"database", "coordinator", *SITES} <= waited


def test_versions_and_images_are_those_of_the_project(compose: dict[str, Any]) -> None:
    version = re.search(r'^version = "(.*)"', (DEPLOY.parent / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    for service in compose.values():
        if "build" in service:
            assert service["image"].endswith(f":{version[1]}")
            dockerfile = (Path(service["build"]["context"]) / service["build"]["dockerfile"]).read_text()
            for key, value in service["build"]["args"].items():
                assert re.search(rf'^ARG {key}="?{re.escape(value)}"?$', dockerfile, re.MULTILINE) or key == "REVISION", key
        else:
            assert re.search(r":v?\d+\.\d+(\.\d+)?", service["image"]), f"{service['image']} is pinned to no version"


# -- the files that it mounts ----------------------------------------------------------------------------------------------


def test_the_mounted_configurations_load_with_what_is_provisioned(
    compose: dict[str, Any], places: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.furnish()
    rewrite = places.rewriter("provision")
    into = dict(
        rewrite(word).removeprefix("--into=").split("=", 1) for word in compose["provision"]["command"] if "=/" in word
    )
    assert provision({name: Path(path) for name, path in into.items()}, ["localhost"], None, lambda: 1_800_000_000)
    for name in SITES:
        for key, value in places.environment(name).items():
            monkeypatch.setenv(key, value)
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
        for key in compose[name]["environment"]:
            monkeypatch.delenv(key)
    assert len({(places.volume(f"{name}-files") / "data" / "records.csv").read_bytes() for name in SITES}) == len(SITES)
    for key, value in places.environment("coordinator").items():
        monkeypatch.setenv(key, value)
    hub = load_coordinator_config(places.config("coordinator", "coordinator.toml"))
    assert hub.database_place.startswith(f"postgresql://veilsum@{places.address('database', 5432)}/veilsum?passfile=/")
    password = (places.volume("database-files") / "password").read_text()
    assert Path(hub.database_place.partition("passfile=")[2]).read_text() == f"*:*:*:veilsum:{password}\n"
    request = load_study_request(places.config("study", "study.toml"))
    assert request.dataset in config.datasets
    assert request.method in config.policy.methods
    assert request.data is not None


def test_prometheus_scrapes_every_endpoint_of_ours_and_the_rules_are_the_shipped_ones(
    compose: dict[str, Any], places: Services
) -> None:
    places.furnish()
    stated = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
    targets = {target for job in stated["scrape_configs"] for group in job["static_configs"] for target in group["targets"]}
    ours = {
        f"{name}:{port}"
        for name, service in compose.items()
        if image_name(service).startswith("veilsum-") and name != "webhook"
        for port in container_ports(service)
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
    done = subprocess.run([need_tool("promtool"), "check", "config", copy], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


# -- paths and addresses ---------------------------------------------------------------------------------------------------


def test_texts_are_rewritten_to_this_machines_places(places: Services, tmp_path: Path) -> None:
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
def test_a_text_that_names_no_place_stays(places: Services, text: str) -> None:
    rewrite = places.rewriter("north")
    if not re.search(r"0\.0\.0\.0:|127\.0\.0\.1:", text):
        assert rewrite(text) == text


def test_ports_are_all_different_and_the_directorys_name_is_plain(file: dict[str, Any], tmp_path: Path) -> None:
    assert len(set(free_ports(64))) == 64
    with pytest.raises(Misuse, match="characters"):
        Services(file, tmp_path / "a b")


def test_durations_are_as_compose_writes_them() -> None:
    assert [seconds(text) for text in ("30s", "1m0s", "1h2m3s")] == [30, 60, 3723]


def test_an_unknown_image_is_refused_by_name(file: dict[str, Any], tmp_path: Path) -> None:
    other = {**file["services"]["webhook"], "image": "busybox:1", "depends_on": {}}
    with pytest.raises(StateError, match="busybox of the service other"):
        Services({"services": {"other": other}}, tmp_path)


def test_what_is_left_out_is_grafana_alone(compose: dict[str, Any], places: Services) -> None:
    assert places.left_out == ["grafana"]
    assert set(places.here) == set(compose) - {"grafana"}
    for name in places.here:
        assert all(places.here.index(other) < places.here.index(name) for other in compose[name].get("depends_on", ()))
