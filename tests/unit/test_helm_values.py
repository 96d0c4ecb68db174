"""Values of the Helm chart: what they become in veilsum's own files, what is refused, and what the policies let through."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from support.charts import (
    CHART,
    EXAMPLES,
    Elsewhere,
    Object,
    Pod,
    Release,
    RenderError,
    admits,
    connects,
    helm,
    render,
)
from veilsum_coordinator.protocol.settings import CoordinatorConfig, load_coordinator_config
from veilsum_participant.settings.config import ParticipantConfig, load_participant_config

CHART_NAMES = {"app.kubernetes.io/name": "veilsum"}
MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
OBSERVABILITY = {"kubernetes.io/metadata.name": "observability"}


def written(release: Release, part: str, folder: Path) -> Path:
    path = folder / f"{part}.toml"
    path.write_text(release.toml(part), encoding="utf-8")
    return path


def participant(release: Release, folder: Path) -> ParticipantConfig:
    return load_participant_config(written(release, "participant", folder))


def coordinator(release: Release, folder: Path) -> CoordinatorConfig:
    return load_coordinator_config(written(release, "coordinator", folder))


def mounted(pod: Pod, path: Path) -> bool:
    """Whether a path is a file that Kubernetes puts there, or lies in a volume."""
    places = [Path(item["mountPath"]) for item in pod.container["volumeMounts"] if item["name"] not in ("config",)]
    files = pod.files
    inside = [place for place in places if place == path or place in path.parents]
    listed = [name for name in files if any(name.startswith(f"{place}/") for place in inside) and not name.endswith("/*")]
    return bool(inside) and (not listed or str(path) in files or any(name.startswith(f"{path}/") for name in listed))


def test_a_coordinator_reads_what_the_chart_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = render("coordinator-production")
    pod = release.pod("coordinator")
    config = coordinator(release, tmp_path)
    assert (config.waits.enrol, config.waits.contribute, config.waits.seal) == (86400, 7200, 600)
    assert config.max_peer_streams == 32
    assert config.metrics is not None
    assert config.listen.endswith(f":{pod.port('grpc')}")
    assert config.metrics.listen == f"0.0.0.0:{pod.port('metrics')}"
    assert config.log.format == "json"
    places = [config.identity, config.state, config.metrics.certificate, config.metrics.key, config.metrics.token_file]
    assert all(place is not None and mounted(pod, place) for place in places)
    (variable,) = (item for item in pod.container["env"] if item["name"].startswith("VEILSUM"))
    assert mounted(pod, Path(variable["value"]))
    assert mounted(pod, Path("/etc/veilsum/database/ca.pem"))
    url = tmp_path / "url"
    url.write_text("postgresql://veilsum:secret@db.example/veilsum\n", encoding="utf-8")
    monkeypatch.setenv(variable["name"], str(url))
    assert coordinator(release, tmp_path).database_place == "postgresql://veilsum:secret@db.example/veilsum"


def test_a_coordinator_s_other_certificate(tmp_path: Path) -> None:
    release = render("coordinator-production", values={"coordinator": {"tls": {"existingSecret": "public-name"}}})
    config = coordinator(release, tmp_path)
    assert config.tls is not None
    pod = release.pod("coordinator")
    assert pod.files[str(config.tls.certificate)] == ("secret", "public-name", "tls.crt")
    assert pod.files[str(config.tls.key)] == ("secret", "public-name", "tls.key")


def test_a_participant_reads_what_the_chart_writes(tmp_path: Path) -> None:
    release = render("participant-hospital")
    pod = release.pod("participant")
    config = participant(release, tmp_path)
    values = yaml.safe_load((EXAMPLES / "participant-hospital.yaml").read_text(encoding="utf-8"))["participant"]["config"]
    assert config.coordinator == values["coordinator"]
    assert config.proxy == values["proxy"]
    assert {name: str(item.path) for name, item in config.datasets.items()} == {
        name: item["path"] for name, item in values["datasets"].items()
    }
    assert config.population("echo") == "cardiology"
    assert config.budgets["cardiology"].model_dump() == values["budgets"]["cardiology"]
    assert config.policy.model_dump(mode="json", include=set(values["policy"])) == values["policy"]
    assert config.metrics is not None
    files = [config.metrics.certificate, config.metrics.key, config.metrics.token_file, config.ca_bundle]
    files.append(config.proxy_password_file)
    assert all(str(path) in pod.files for path in files)
    assert mounted(pod, config.identity)
    assert mounted(pod, config.state)
    assert all(mounted(pod, item.path) for item in config.datasets.values())


@pytest.mark.parametrize("kind", ["existingSecret", "existingConfigMap"])
def test_a_directory_is_mounted_and_then_used(kind: str, tmp_path: Path) -> None:
    """First mounted alone, to be confirmed in a pod that runs; then its pins take the place of ``trusted``."""
    named = {kind: "veilsum-directory"}
    pinned = {"config": {"policy": {"trusted": {"st-john": "1" * 64}}}, "directory": named}
    first = render("participant-trial", values={"participant": pinned})
    config = participant(first, tmp_path)
    assert (config.policy.directory, list(config.policy.trusted)) == (None, ["st-john"])
    release = render("participant-trial", values={"participant": {"directory": named | {"use": True}}})
    config = participant(release, tmp_path)
    assert config.policy.directory is not None
    for pod in (first.pod("participant"), release.pod("participant")):
        assert str(config.policy.directory) in pod.files
    assert config.policy.analysts == participant(render("participant-trial"), tmp_path).policy.analysts


@pytest.mark.parametrize(("example", "part"), [("coordinator-trial", "coordinator"), ("participant-trial", "participant")])
def test_without_an_endpoint_metrics_stay_on_loopback(example: str, part: str, tmp_path: Path) -> None:
    release = render(example)
    config = participant(release, tmp_path) if part == "participant" else coordinator(release, tmp_path)
    assert config.metrics is not None
    assert config.metrics.listen.startswith("127.0.0.1:")
    pod = release.pod(part)
    assert pod.port("metrics") is None
    command = pod.container["readinessProbe"]["exec"]["command"]
    assert command == ["veilsum", part, "health", "--config", f"/etc/veilsum/config/{part}.toml"]
    assert "livenessProbe" not in pod.container
    start = [item if item != "health" else "start" for item in command]
    assert pod.container["command"] == start


def test_any_text_and_number_passes_through_toml_unchanged(tmp_path: Path) -> None:
    names = ['say "x"', "back\\slash", "two\nlines", "tab\t", "ümläut €", "<&>'", "# no comment", "\u2028", "[x]", "yes", "1"]
    config: Object = {
        "budgets": {
            "small": {"epsilon": 0.1, "delta": 1.5e-11},
            "whole": {"epsilon": 1000, "delta": 0.01},
            "none": {"epsilon": "unlimited", "delta": 1e-7},
        },
        "encoders": {"a.b": {"path": "/x y/enc.pt"}},
        "policy": {"analysts": names, "max_attempts": 1000, "max_epsilon": 2, "min_cohort": 1024, "methods": []},
    }
    loaded = participant(render("participant-trial", values={"participant": {"config": config}}), tmp_path)
    assert list(loaded.policy.analysts) == names
    assert loaded.policy.methods == ()
    assert (loaded.policy.max_attempts, loaded.policy.max_epsilon, loaded.policy.min_cohort) == (1000, 2.0, 1024)
    assert {name: item.model_dump() for name, item in loaded.budgets.items() if name != "records"} == config["budgets"]
    assert str(loaded.encoders["a.b"].path) == "/x y/enc.pt"


REFUSED: list[tuple[str, Object, str]] = [
    ("participant-trial", {"participants": {}}, "'participants' not allowed"),
    ("participant-trial", {"participant": {"confg": {}}}, "'confg' not allowed"),
    ("participant-trial", {"participant": {"config": {"polcy": {}}}}, "'polcy' not allowed"),
    ("participant-trial", {"participant": {"config": {"policy": {"min_cohorts": 3}}}}, "'min_cohorts' not allowed"),
    ("participant-trial", {"participant": {"config": {"policy": {"min_cohort": 1}}}}, "minimum: got 1, want 2"),
    ("participant-trial", {"participant": {"config": {"policy": {"trusted": {"a": "abc"}}}}}, "does not match pattern"),
    ("participant-trial", {"participant": {"config": {"budgets": {"Records": {"epsilon": 1, "delta": 1e-5}}}}}, "'Records'"),
    ("participant-trial", {"participant": {"config": {"state": "/elsewhere"}}}, "'state' not allowed"),
    ("participant-trial", {"participant": {"config": {"identity": "/elsewhere"}}}, "'identity' not allowed"),
    ("participant-trial", {"participant": {"config": {"coordinator": ""}}}, "participant.config.coordinator: name the"),
    ("participant-trial", {"participant": {"config": {"coordinator": "host"}}}, '"host" names no port'),
    ("participant-trial", {"participant": {"config": {"proxy": "environment"}}}, "participant.config.proxy: name the proxy"),
    ("participant-trial", {"participant": {"name": ""}}, "participant.name: the site's certified name"),
    ("participant-trial", {"participant": {"identity": {"existingSecret": ""}}}, "participant.identity.existingSecret: name"),
    ("participant-trial", {"participant": {"image": {"repository": ""}}}, "participant.image.repository: name the image"),
    ("participant-trial", {"participant": {"networkPolicy": {"coordinatorTo": []}}}, "coordinatorTo: say where"),
    ("participant-trial", {"participant": {"metrics": {"enabled": True}}}, "participant.metrics.tls.existingSecret: name"),
    ("participant-trial", {"participant": {"metrics": {"serviceMonitor": {"enabled": True}}}}, "needs participant.metrics.en"),
    ("participant-trial", {"participant": {"state": {"accessModes": ["ReadWriteMany"]}}}, "accessModes"),
    ("participant-trial", {"participant": {"caBundle": {"existingSecret": "a", "existingConfigMap": "b"}}}, "not both"),
    ("participant-trial", {"participant": {"directory": {"existingSecret": "a", "existingConfigMap": "b"}}}, "not both"),
    ("logins", {"logins": {"caBundle": {"existingSecret": "a", "existingConfigMap": "b"}}}, "logins.caBundle: name a"),
    ("logins", {"logins": {"config": {"provider": {"ca_bundle": "roots.pem"}}}}, "'ca_bundle' not allowed"),
    ("participant-trial", {"participant": {"directory": {"use": True}}}, "directory.use: name the Secret or ConfigMap"),
    ("participant-hospital", {"participant": {"directory": {"existingSecret": "a", "use": True}}}, "takes the place of"),
    ("participant-trial", {"participant": {"resources": {"limit": {}}}}, "'limit' not allowed"),
    ("participant-trial", {"user": {"id": 0}}, "minimum: got 0, want 1"),
    ("participant-trial", {"participant": {"enabled": False}}, "Nothing to install"),
    ("participant-trial", {"postgresql": {"enabled": True}}, "postgresql.enabled needs coordinator.enabled"),
    ("coordinator-trial", {"coordinator": {"config": {"database": "postgresql://u:p@h/d"}}}, "'database' not allowed"),
    ("coordinator-trial", {"coordinator": {"database": {"existingSecret": ""}}}, "coordinator.database.existingSecret: name"),
    ("coordinator-trial", {"postgresql": {"enabled": False}}, "coordinator.networkPolicy.databaseTo: say where"),
    ("coordinator-trial", {"coordinator": {"service": {"type": "ExternalName"}}}, "service/type"),
    ("coordinator-trial", {"coordinator": {"networkPolicy": {"ingressFrom": [{"cidr": "0.0.0.0/0"}]}}}, "'cidr' not allowed"),
    ("coordinator-trial", {"coordinator": {"networkPolicy": {"ingressFrom": [{}]}}}, "minProperties"),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("example", "values", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_what_cannot_work_is_refused_with_the_value_s_name(example: str, values: Object, message: str) -> None:
    render(example)
    with pytest.raises(RenderError) as caught:
        render(example, values=values)
    assert message in str(caught.value)


def test_a_participant_without_a_dataset_is_refused() -> None:
    values = yaml.safe_load((EXAMPLES / "participant-trial.yaml").read_text(encoding="utf-8"))
    del values["participant"]["config"]["datasets"]
    with pytest.raises(RenderError, match=r"participant\.config\.datasets: name at least one dataset and its path"):
        render(values=values)


def test_the_chart_s_own_user_and_names_can_be_chosen() -> None:
    release = render("coordinator-trial", values={"fullnameOverride": "sum", "user": {"id": 4000, "group": 4001}})
    pod = release.pod("coordinator")
    assert pod.name == "sum-coordinator"
    assert (pod.spec["securityContext"]["runAsUser"], pod.spec["securityContext"]["fsGroup"]) == (4000, 4001)


def test_the_trial_s_parts_reach_each_other_and_nothing_else() -> None:
    both: Object = yaml.safe_load((EXAMPLES / "participant-trial.yaml").read_text(encoding="utf-8"))
    release = render("coordinator-trial", values=both)
    coordinator_pod, participant_pod, database = (release.pod(part) for part in ("coordinator", "participant", "postgresql"))
    assert connects(release, participant_pod, coordinator_pod, 8461)
    assert connects(release, coordinator_pod, database, 5432)
    for caller, server, port in [
        (participant_pod, database, 5432),
        (coordinator_pod, participant_pod, 9465),
        (coordinator_pod, participant_pod, 8461),
        (database, coordinator_pod, 8461),
        (database, participant_pod, 9465),
        (participant_pod, coordinator_pod, 9464),
    ]:
        assert not connects(release, caller, server, port)
    dns = Elsewhere({"kubernetes.io/metadata.name": "kube-system"}, {"k8s-app": "kube-dns"})
    for pod, opened in ((coordinator_pod, True), (participant_pod, True), (database, False)):
        assert admits(release, pod, "Egress", dns, 53) is opened
        assert not admits(release, pod, "Egress", dns, 443)
        assert not admits(release, pod, "Egress", Elsewhere(address="192.0.2.1/32"), 443)
    stranger = Elsewhere({}, {**CHART_NAMES, "app.kubernetes.io/component": "participant"})
    assert not admits(release, coordinator_pod, "Ingress", stranger, 8461)  # the labels, but another namespace


def test_a_hospital_s_participant_reaches_its_proxy_and_is_reached_by_its_prometheus_only() -> None:
    release = render("participant-hospital")
    pod = release.pod("participant")
    assert admits(release, pod, "Egress", Elsewhere(address="10.1.2.3/32"), 3128)
    assert not admits(release, pod, "Egress", Elsewhere(address="10.1.2.3/32"), 8461)
    assert not admits(release, pod, "Egress", Elsewhere(address="10.1.2.4/32"), 3128)
    prometheus = Elsewhere(OBSERVABILITY, {"app.kubernetes.io/name": "prometheus"})
    assert admits(release, pod, "Ingress", prometheus, 9465)
    assert not admits(release, pod, "Ingress", prometheus, 8461)
    assert not admits(release, pod, "Ingress", Elsewhere(OBSERVABILITY, {}), 9465)
    assert not admits(release, pod, "Ingress", Elsewhere(MONITORING, {"app.kubernetes.io/name": "prometheus"}), 9465)
    assert connects(release, release.pod("test"), pod, 9465)  # the pod of `helm test`
    assert not admits(release, release.pod("test"), "Ingress", prometheus, 9465)


def test_a_coordinator_is_reached_from_the_named_addresses_only() -> None:
    release = render("coordinator-production")
    pod = release.pod("coordinator")
    assert admits(release, pod, "Ingress", Elsewhere(address="203.0.113.7/32"), 8461)
    assert not admits(release, pod, "Ingress", Elsewhere(address="203.0.113.8/32"), 8461)
    assert not admits(release, pod, "Ingress", Elsewhere(address="203.0.113.7/32"), 9464)
    assert admits(release, pod, "Ingress", Elsewhere(MONITORING, {}), 9464)
    assert not admits(release, pod, "Ingress", Elsewhere(MONITORING, {}), 8461)
    assert admits(release, pod, "Egress", Elsewhere(address="10.20.0.5/32"), 5432)
    assert not admits(release, pod, "Egress", Elsewhere(address="10.20.0.5/32"), 22)


def test_policies_can_be_left_to_others() -> None:
    release = render("participant-trial", values={"networkPolicy": {"enabled": False}})
    assert release.of("NetworkPolicy") == []


def test_notes_say_what_is_missing() -> None:
    def notes(example: str, *more: str) -> str:
        place = EXAMPLES / f"{example}.yaml"
        out = helm("install", "t", CHART, "--namespace", "n", "--dry-run=client", "--values", place, *more)
        return out.partition("NOTES:")[2]

    assert "NOBODY CAN DIAL IT" not in notes("coordinator-trial")
    assert "NOBODY CAN DIAL IT" in notes("coordinator-trial", "--set", "coordinator.networkPolicy.ingressFrom=null")
    told = notes("participant-hospital")
    assert "Participant st-mary dials coordinator.federation.example:8461 by proxy.hospital.example:3128" in told
    assert "helm -n n test t" in told


def page_commands() -> list[str]:
    text = (CHART.parents[2] / "docs" / "deployment" / "kubernetes.md").read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.startswith("    helm ")]


def test_the_page_s_helm_commands_render(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHART.parents[2])
    commands = page_commands()
    assert len(commands) == 7
    for command in commands:
        words = command.removeprefix("helm ").replace("upgrade --install", "template").split()
        if "template" not in words:
            assert words == ["--namespace", "veilsum", "test", "hub"]
        elif "participant.config.policy.min_cohorts=4" in words:
            with pytest.raises(RenderError, match="additional properties 'min_cohorts' not allowed"):
                helm(*words)
        else:
            assert "kind: " in helm(*words)
