"""The Helm chart, rendered by Helm: valid objects that fit each other, for every example of values."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from support.charts import CHART, EXAMPLES, ROOT, Object, Release, helm, render, selects

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
VERSIONS = ("1.27", "1.32", "1.37")
"""Of Kubernetes: the oldest that Chart.yaml admits, one between, and the newest whose schema is at hand."""


@pytest.fixture(params=NAMES)
def example(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def release(example: str) -> Release:
    return render(example)


def built_in(release: Release) -> Iterator[Object]:
    return (item for item in release.objects if not item["apiVersion"].startswith("monitoring.coreos.com/"))


def test_there_are_examples_of_every_part() -> None:
    assert len(NAMES) >= 3
    kinds = {item["kind"] for name in NAMES for item in render(name).objects}
    assert kinds == {
        "ConfigMap", "NetworkPolicy", "Pod", "PodDisruptionBudget", "PrometheusRule", "Service", "ServiceAccount",
        "ServiceMonitor", "StatefulSet",
    }  # fmt: skip


@pytest.fixture(scope="module")
def kubernetes() -> ModuleType:
    """Whose import takes seconds, with jsonschema's."""
    import kubernetes_validate

    return kubernetes_validate


@pytest.mark.sampled(11)
@pytest.mark.parametrize("version", VERSIONS)
def test_objects_fit_the_schemas_of_kubernetes(release: Release, version: str, kubernetes: ModuleType) -> None:
    for item in built_in(release):
        assert kubernetes.validate(item, version, strict=True) == version


@pytest.mark.parametrize(
    "spoil",
    [
        lambda pod: pod["spec"].update(hostnetwork=False),
        lambda pod: pod["spec"]["containers"][0].pop("name"),
        lambda pod: pod["spec"]["containers"][0]["securityContext"].update(readOnlyRootFileSystem=True),
        lambda pod: pod["spec"]["securityContext"].update(runAsUser="10001"),
        lambda pod: pod["spec"]["volumes"][0].update(secrets={}),
    ],
)
def test_a_spoilt_object_does_not_fit(spoil: object, kubernetes: ModuleType) -> None:
    item = copy.deepcopy(render("coordinator-trial").of("StatefulSet")[0])
    kubernetes.validate(item, VERSIONS[-1], strict=True)
    spoil(item["spec"]["template"])  # type: ignore[operator]
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(item, VERSIONS[-1], strict=True)


@pytest.fixture(scope="module")
def operator() -> ModuleType:
    """The operator's definitions, whose import takes seconds."""
    from cloudcoil.models.prometheus_operator import v1

    return v1


@pytest.mark.system
def test_objects_of_the_prometheus_operator_fit_its_definitions(release: Release, operator: ModuleType) -> None:
    for kind, model in (("ServiceMonitor", operator.ServiceMonitor), ("PrometheusRule", operator.PrometheusRule)):
        for item in release.of(kind):
            read = model.model_validate(item)
            assert read.model_dump(mode="json", by_alias=True, exclude_unset=True) == item  # it knew every key


@pytest.mark.system
def test_a_spoilt_monitor_does_not_fit(operator: ModuleType) -> None:
    item = copy.deepcopy(render("coordinator-production").of("ServiceMonitor")[0])
    item["spec"]["endpoints"][0]["tlsConfig"]["serverNames"] = "x"
    assert operator.ServiceMonitor.model_validate(item).model_dump(mode="json", by_alias=True, exclude_unset=True) != item


def rules_of(release: Release) -> tuple[Object, dict[str, str]]:
    """The rules of a release, and their conditions by the alert's name."""
    (item,) = release.of("PrometheusRule")
    rules = [rule for group in item["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
    return item["spec"], {rule["alert"]: rule["expr"] for rule in rules}


def test_the_alerts_are_those_of_the_repository() -> None:
    text = (ROOT / "deploy" / "prometheus" / "rules" / "veilsum.yml").read_text(encoding="utf-8")
    assert rules_of(render("participant-hospital"))[0] == yaml.safe_load(text)


def test_limits_of_alerts_follow_the_configuration() -> None:
    """Of an attempt by the coordinator's waits, of a verification by the participant's hours."""
    spec, found = rules_of(render("coordinator-production"))
    assert found["VeilsumRoundStuck"].endswith(f"> {7200 + 600 + 600}")
    text = (ROOT / "deploy" / "prometheus" / "rules" / "veilsum.yml").read_text(encoding="utf-8")
    assert spec == yaml.safe_load(text.replace("> 4800\n", "> 8400\n"))
    longer = {"participant": {"config": {"verify_hours": 72}}}
    found = rules_of(render("participant-hospital", values=longer))[1]
    assert found["VeilsumLedgerVerificationStale"].endswith(f"> 2 * {72 * 3600}")
    assert found["VeilsumRoundStuck"].endswith("> 4800")


def test_pods_meet_the_restricted_security_standard(release: Release) -> None:
    for pod in release.pods:
        assert pod.spec["automountServiceAccountToken"] is False
        assert pod.spec["enableServiceLinks"] is False  # else VEILSUM_… variables of Kubernetes' making reach veilsum
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod.spec)
        context = pod.spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod.container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= set(pod.container["resources"]["requests"])
        assert "memory" in pod.container["resources"]["limits"]
        allowed = {"configMap", "secret", "projected", "emptyDir", "persistentVolumeClaim"}
        assert all(set(volume) - {"name"} <= allowed for volume in pod.spec["volumes"])


def test_every_mount_has_its_volume_and_every_volume_a_mount(release: Release) -> None:
    for pod in release.pods:
        mounts = pod.container["volumeMounts"]
        claims = {"state"} if pod.kind == "StatefulSet" else set()
        assert {item["name"] for item in mounts} == set(pod.volumes) | claims
        assert len({item["mountPath"] for item in mounts}) == len(mounts)
        for item in mounts:
            volume = pod.volumes.get(item["name"], {})
            assert item.get("readOnly", False) is not ("emptyDir" in volume or item["name"] == "state")
    for item in release.of("StatefulSet"):
        assert [claim["metadata"]["name"] for claim in item["spec"]["volumeClaimTemplates"]] == ["state"]


def test_what_is_not_in_the_release_is_named_at_the_head_of_the_example(example: str, release: Release) -> None:
    head = (EXAMPLES / f"{example}.yaml").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    told = " ".join(line for line in head if line.startswith("#"))
    made = {("configMap", item["metadata"]["name"]) for item in release.of("ConfigMap")}
    for pod in release.pods:
        for kind, name, key in pod.files.values():
            if (kind, name) not in made:
                assert name in told
                assert key in told or key == "*"
        for volume in pod.volumes.values():
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in told
    for monitor in release.of("ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["tlsConfig"]["ca"]["secret"]["name"] in told
        assert endpoint["authorization"]["credentials"]["name"] in told


def test_ports_resolve(release: Release) -> None:
    for service in release.of("Service"):
        pods = [pod for pod in release.pods if selects({"matchLabels": service["spec"]["selector"]}, pod.labels)]
        assert len(pods) == 1
        for port in service["spec"].get("ports", []):
            assert pods[0].port(port["targetPort"]) is not None
            if service["spec"].get("clusterIP") == "None":
                assert pods[0].port(port["targetPort"]) == port["port"]  # a headless service translates no port
    for pod in release.pods:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            for handler in ("httpGet", "tcpSocket"):
                if handler in pod.container.get(probe, {}):
                    assert pod.port(pod.container[probe][handler]["port"]) is not None


def test_selectors_select(release: Release) -> None:
    for item in release.of("StatefulSet"):
        assert selects(item["spec"]["selector"], item["spec"]["template"]["metadata"]["labels"])
        governing = release.get("Service", item["spec"]["serviceName"])
        assert governing["spec"]["clusterIP"] == "None"
        assert selects({"matchLabels": governing["spec"]["selector"]}, item["spec"]["template"]["metadata"]["labels"])
    for item in release.of("PodDisruptionBudget"):
        assert sum(selects(item["spec"]["selector"], pod.labels) for pod in release.pods) == 1
    deny = release.get("NetworkPolicy", f"{release.name}-veilsum-deny")
    assert all(selects(deny["spec"]["podSelector"], pod.labels) for pod in release.pods)
    for item in release.of("NetworkPolicy"):
        assert any(selects(item["spec"]["podSelector"], pod.labels) for pod in release.pods)
    for item in release.of("ServiceMonitor"):
        services = [it for it in release.of("Service") if selects(item["spec"]["selector"], it["metadata"]["labels"])]
        (service,) = services
        ports = {port["name"] for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in item["spec"]["endpoints"]} <= ports
        assert item["spec"]["namespaceSelector"]["matchNames"] == [release.namespace]


def test_names_of_jobs_and_sites_are_those_of_rules_and_dashboards() -> None:
    found = {}
    for name in ("coordinator-production", "participant-hospital"):
        (monitor,) = render(name).of("ServiceMonitor")
        (endpoint,) = monitor["spec"]["endpoints"]
        found[name] = {item["targetLabel"]: item["replacement"] for item in endpoint["relabelings"]}
    assert found == {
        "coordinator-production": {"job": "veilsum-coordinator"},
        "participant-hospital": {"job": "veilsum-participant", "site": "st-mary"},
    }


def test_a_changed_configuration_restarts_the_pod_and_nothing_else_does() -> None:
    def mark(**values: object) -> str:
        (item,) = render("participant-trial", values=dict(values)).of("StatefulSet")
        return str(item["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert mark() == mark(participant={"podDisruptionBudget": {"enabled": True}})
    assert mark() != mark(participant={"config": {"policy": {"min_cohort": 4}}})


@pytest.mark.sampled(3)
def test_helm_lints_the_chart(example: str) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, "--values", EXAMPLES / f"{example}.yaml")


def test_the_chart_packs_with_its_alerts(tmp_path: Path) -> None:
    helm("package", CHART, "--destination", tmp_path)
    (archive,) = tmp_path.glob("veilsum-*.tgz")
    out = helm("template", "t", archive, "--values", EXAMPLES / "coordinator-production.yaml")
    kinds = [item["kind"] for item in yaml.safe_load_all(out) if item]
    assert "PrometheusRule" in kinds
    assert "VeilsumTargetDown" in out


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = util.spec_from_file_location("veilsum_values_schema", ROOT / "deploy" / "helm" / "schema.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_schema_of_values_is_up_to_date(generator: ModuleType) -> None:
    assert generator.main(["--check"]) == 0, "run `python deploy/helm/schema.py`"


def test_the_schema_takes_the_examples_and_the_defaults(generator: ModuleType, example: str) -> None:
    schema = generator.build()
    import jsonschema

    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    for path in (CHART / "values.yaml", EXAMPLES / f"{example}.yaml"):
        validator.validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_every_value_has_a_default_and_every_default_a_schema(generator: ModuleType) -> None:
    def keys(schema: Object, value: object, path: str = "") -> Iterator[tuple[str, bool, bool]]:
        if schema.get("additionalProperties", True) is not False or path.endswith(".config") or not isinstance(value, dict):
            return
        for key in sorted(set(schema["properties"]) | set(value)):
            yield f"{path}.{key}", key in schema["properties"], key in value
            if key in schema["properties"] and key in value:
                yield from keys(schema["properties"][key], value[key], f"{path}.{key}")

    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    found = list(keys(generator.build(), values))
    assert len(found) > 100
    assert [name for name, *both in found if not all(both)] == [".global"]
