"""Rendering the Helm chart with Helm itself, and asking what its objects mean to each other.

Nothing here talks to a cluster: objects are read as Kubernetes' documentation defines them (labels and selectors, named
ports, network policies).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from support.tools import need_tool

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "veilsum"
EXAMPLES = ROOT / "deploy" / "helm" / "values"

Object = dict[str, Any]


class RenderError(Exception):
    """Helm did not render; the message is what it wrote."""


def helm(*arguments: str | Path, text: str = "") -> str:
    """Run Helm and return its output; ``text`` goes to its standard input.

    Raises:
        RenderError: Helm ended with an error.
    """
    done = subprocess.run([need_tool("helm"), *arguments], input=text, capture_output=True, text=True, timeout=240)
    if done.returncode != 0:
        raise RenderError(done.stderr)
    return done.stdout


@dataclass(frozen=True)
class Pod:
    """A pod that the release would start."""

    kind: str
    name: str
    labels: Mapping[str, str]
    spec: Object

    @property
    def container(self) -> Object:
        """Its only container."""
        (container,) = self.spec["containers"]
        return dict(container)

    def port(self, port: str | int) -> int | None:
        """Number of a port by its name, or the number itself where the container declares it."""
        for item in self.container.get("ports", []):
            if port in (item["name"], item["containerPort"]):
                return int(item["containerPort"])
        return None

    @property
    def volumes(self) -> dict[str, Object]:
        """Volumes by name, without the claim of the state."""
        return {item["name"]: item for item in self.spec["volumes"]}

    @property
    def files(self) -> dict[str, tuple[str, str, str]]:
        """Path inside the container of every file of a Secret or ConfigMap: kind, name and key of what it comes from."""
        found = {}
        for mount in self.container["volumeMounts"]:
            for kind, name, key, path in _sources(self.volumes.get(mount["name"], {})):
                found[f"{mount['mountPath']}/{path}"] = (kind, name, key)
        return found


def _sources(volume: Object) -> Iterator[tuple[str, str, str, str]]:
    parts = volume["projected"]["sources"] if "projected" in volume else [volume]
    for part in parts:
        for kind, key in (("secret", "secretName"), ("configMap", "name")):
            if kind in part:
                source = part[kind]
                for item in source.get("items", [{"key": "*", "path": "*"}]):
                    yield kind, source.get(key) or source["name"], item["key"], item["path"]


@dataclass(frozen=True)
class Release:
    """What one ``helm template`` made."""

    objects: tuple[Object, ...]
    name: str
    namespace: str

    def of(self, kind: str) -> list[Object]:
        """All objects of a kind."""
        return [item for item in self.objects if item["kind"] == kind]

    def get(self, kind: str, name: str) -> Object:
        """One object."""
        (found,) = (item for item in self.of(kind) if item["metadata"]["name"] == name)
        return found

    @cached_property
    def pods(self) -> tuple[Pod, ...]:
        """Every pod that it would start, those of ``helm test`` included."""
        found = [
            Pod(item["kind"], item["metadata"]["name"], template["metadata"]["labels"], template["spec"])
            for item in self.of("StatefulSet")
            for template in [item["spec"]["template"]]
        ]
        found += [Pod("Pod", item["metadata"]["name"], item["metadata"]["labels"], item["spec"]) for item in self.of("Pod")]
        return tuple(found)

    def pod(self, component: str) -> Pod:
        """The pod of a part."""
        (found,) = (pod for pod in self.pods if pod.labels["app.kubernetes.io/component"] == component)
        return found

    def toml(self, part: str) -> str:
        """A part's configuration file."""
        (config,) = (item for item in self.of("ConfigMap") if f"{part}.toml" in item["data"])
        return str(config["data"][f"{part}.toml"])


@cache
def _render(release: str, namespace: str, files: tuple[Path, ...], values: str) -> Release:
    places = [argument for file in files for argument in ("--values", file)]
    command = ["template", release, CHART, "--namespace", namespace, *places]
    out = helm(*command, "--values", "-", text=values)
    return Release(tuple(item for item in yaml.safe_load_all(out) if item is not None), release, namespace)


def render(*files: str, values: Object | None = None, release: str = "trial", namespace: str = "veilsum") -> Release:
    """Render the chart with examples (by name, without ``.yaml``) and further values on top of them.

    Raises:
        RenderError: Helm refuses the values.
    """
    paths = tuple(EXAMPLES / f"{name}.yaml" for name in files)
    return _render(release, namespace, paths, json.dumps(values or {}))


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects labels; an empty one selects everything."""
    assert set(selector) <= {"matchLabels"}, "only matchLabels is read here"
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


@dataclass(frozen=True)
class Elsewhere:
    """Something outside the release: a pod of another namespace, or (without labels) an address.

    Attributes:
        namespace: labels of its namespace.
        labels: its own.
        address: as a CIDR block with one address.
    """

    namespace: Mapping[str, str] | None = None
    labels: Mapping[str, str] | None = None
    address: str = ""


def _peer(peer: Object, who: Pod | Elsewhere) -> bool:
    if "ipBlock" in peer:
        return isinstance(who, Elsewhere) and peer["ipBlock"]["cidr"] == who.address
    if isinstance(who, Elsewhere) and who.namespace is None:
        return False
    if "namespaceSelector" in peer:
        if isinstance(who, Pod) or not selects(peer["namespaceSelector"], who.namespace or {}):
            return False
    elif isinstance(who, Elsewhere):
        return False  # a podSelector alone means the policy's own namespace
    return "podSelector" not in peer or selects(peer["podSelector"], who.labels or {})


def _rule(rule: Object, side: str, who: Pod | Elsewhere, target: Pod | None, port: int) -> bool:
    ports = rule.get("ports")
    number = port
    opened = ports is None or any(
        (target.port(item["port"]) if isinstance(item["port"], str) and target is not None else item["port"]) == number
        for item in ports
    )
    peers = rule.get(side)
    return opened and (peers is None or any(_peer(peer, who) for peer in peers))


def admits(release: Release, pod: Pod, direction: str, other: Pod | Elsewhere, port: int) -> bool:
    """Whether the release's policies let ``pod`` be dialled by (Ingress), or dial (Egress), another at a port."""
    policies = [
        item["spec"]
        for item in release.of("NetworkPolicy")
        if selects(item["spec"]["podSelector"], pod.labels) and direction in item["spec"]["policyTypes"]
    ]
    if not policies:
        return True  # no policy: everything is open
    side = "from" if direction == "Ingress" else "to"
    named = pod if direction == "Ingress" else other if isinstance(other, Pod) else None
    return any(_rule(rule, side, other, named, port) for spec in policies for rule in spec.get(direction.lower()) or [])


def connects(release: Release, caller: Pod, server: Pod, port: int) -> bool:
    """Whether both ends' policies admit a connection between two pods of the release."""
    return admits(release, caller, "Egress", server, port) and admits(release, server, "Ingress", caller, port)
