"""Write values.schema.json: the chart's own keys by hand, the keys of `config` from veilsum's configuration models.

Run it after a change of either: ``python deploy/helm/schema.py``. ``--check`` only says whether the file is stale.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from veilsum_coordinator.protocol.settings import CoordinatorConfig
from veilsum_deploy.login.issuer import LoginServiceConfig
from veilsum_participant.settings.config import ParticipantConfig

SCHEMA = Path(__file__).parent / "veilsum" / "values.schema.json"

COORDINATOR_SETS = ("listen", "identity", "state", "database", "ready_file", "log", "metrics", "tls")
PARTICIPANT_SETS = ("identity", "state", "log", "metrics", "ca_bundle", "proxy_password_file")
LOGINS_SETS = ("listen", "authority", "passphrase_file", "certificate", "key", "ready_file", "log", "metrics")
"""Keys that the chart writes itself, so that volumes, ports and policies fit them."""

Schema = dict[str, Any]

NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
OBJECT_NAME = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$"
KEY = r"^[-._a-zA-Z0-9]{1,253}$"
DURATION = r"^[1-9][0-9]*(s|m|h)$"


def table(**properties: Schema) -> Schema:
    """An object that has these keys and no others."""
    return {"type": "object", "additionalProperties": False, "properties": properties}


def text(pattern: str | None = None, **more: Any) -> Schema:
    """A string."""
    return {"type": "string", **({} if pattern is None else {"pattern": pattern}), **more}


def whole(least: int, most: int) -> Schema:
    """A whole number within limits, both included."""
    return {"type": "integer", "minimum": least, "maximum": most}


def many(items: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": items}


def free(description: str) -> Schema:
    """An object of Kubernetes, which its own server checks."""
    return {"type": "object", "description": description}


BOOLEAN: Schema = {"type": "boolean"}
LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
SECRET = text(OBJECT_NAME, description="Name of a Secret in the release's namespace; empty: none.")
FILE_KEY = text(KEY)
SELECTOR = {**table(matchLabels=LABELS, matchExpressions=many(free("A requirement of a label selector."))), "minProperties": 0}
PEER = {
    **table(
        ipBlock={**table(cidr=text(r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"), **{"except": many(text())}), "required": ["cidr"]},
        podSelector=SELECTOR,
        namespaceSelector=SELECTOR,
    ),
    "minProperties": 1,
}
RULE = {**table(to=many(PEER), ports=many(free("A port of a NetworkPolicy."))), "required": ["to"]}
IMAGE = table(
    repository=text(r"^\S*$"),
    tag=text(r"^[\w.-]{0,128}$"),
    digest=text(r"^(sha256:[0-9a-f]{64})?$"),
    pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
)
STATE = table(
    size=text(r"^[1-9][0-9]*(Mi|Gi|Ti)$"),
    storageClass=text(),
    accessModes={**many({"enum": ["ReadWriteOnce", "ReadWriteOncePod"]}), "minItems": 1, "maxItems": 1},
    annotations=LABELS,
)
METRICS = table(
    enabled=BOOLEAN,
    tls=table(existingSecret=SECRET, certificateKey=FILE_KEY, keyKey=FILE_KEY, caKey=FILE_KEY),
    token=table(existingSecret=SECRET, key=FILE_KEY),
    serviceMonitor=table(
        enabled=BOOLEAN,
        labels=LABELS,
        interval=text(DURATION),
        scrapeTimeout=text(DURATION),
        serverName=text(r"^[a-zA-Z0-9.-]*$"),
    ),
)
RESOURCES = table(requests=free("Quantities by resource."), limits=free("Quantities by resource."))
USER = table(id=whole(1, 2**31 - 1), group=whole(1, 2**31 - 1))
POD: dict[str, Schema] = {
    "podDisruptionBudget": table(enabled=BOOLEAN, maxUnavailable=whole(0, 1)),
    "resources": RESOURCES,
    "terminationGracePeriodSeconds": whole(30, 600),
    "podAnnotations": LABELS,
    "podLabels": LABELS,
    "nodeSelector": LABELS,
    "tolerations": many(free("A toleration.")),
    "affinity": free("An affinity."),
    "topologySpreadConstraints": many(free("A topology spread constraint.")),
    "priorityClassName": text(),
}


def configuration(model: type[BaseModel], left_out: tuple[str, ...]) -> tuple[Schema, dict[str, Schema]]:
    """The schema of a configuration file without the keys that the chart sets, and the definitions that it refers to.

    Nothing is demanded: the templates ask for what is missing, in words.
    """
    whole_schema = model.model_json_schema()
    named = {key: _plain(value) for key, value in whole_schema["properties"].items() if key not in left_out}
    definitions = {key: _plain(value) for key, value in whole_schema.get("$defs", {}).items()}
    return table(**named), _reachable(named, definitions)


def _plain(value: Any) -> Any:
    """Without titles, defaults, formats and Python's docstrings; a table with patterns for its keys takes no others."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept: Schema = {}
    for key, item in value.items():
        if key in ("properties", "patternProperties", "$defs"):
            kept[key] = {name: _plain(inner) for name, inner in item.items()}
        elif key not in ("title", "default", "format", "description", "writeOnly", "minProperties"):
            kept[key] = _plain(item)
    if "patternProperties" in kept:
        kept["additionalProperties"] = False
    return kept


def _reachable(start: Any, definitions: dict[str, Schema]) -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    waiting = [start]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            name = str(item.get("$ref", "")).removeprefix("#/$defs/")
            if name in definitions and name not in found:
                found[name] = definitions[name]
                waiting.append(definitions[name])
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return found


def build() -> Schema:
    """The whole schema of the chart's values."""
    coordinator_config, coordinator_parts = configuration(CoordinatorConfig, COORDINATOR_SETS)
    participant_config, participant_parts = configuration(ParticipantConfig, PARTICIPANT_SETS)
    logins_config, logins_parts = configuration(LoginServiceConfig, LOGINS_SETS)
    del logins_parts["ProviderSettings"]["properties"]["ca_bundle"]  # logins.caBundle mounts it
    parts = {**coordinator_parts, **participant_parts, **logins_parts}
    logins = table(
        enabled=BOOLEAN,
        image=IMAGE,
        tls=table(existingSecret=SECRET, certificateKey=FILE_KEY, keyKey=FILE_KEY),
        passphrase=table(existingSecret=SECRET, key=FILE_KEY),
        caBundle=table(existingSecret=SECRET, existingConfigMap=SECRET, key=FILE_KEY),
        config=logins_config,
        state=STATE,
        networkPolicy=table(ingressFrom=many(PEER), providerTo=many(PEER), providerPort=whole(1, 65535)),
        resources=RESOURCES,
    )
    coordinator = table(
        enabled=BOOLEAN,
        image=IMAGE,
        identity=table(existingSecret=SECRET),
        tls=table(existingSecret=SECRET, certificateKey=FILE_KEY, keyKey=FILE_KEY),
        config=coordinator_config,
        database=table(existingSecret=SECRET, urlKey=FILE_KEY, ca=table(existingSecret=SECRET, key=FILE_KEY)),
        state=STATE,
        service=table(
            type={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
            port=whole(1, 65535),
            annotations=LABELS,
            loadBalancerSourceRanges=many(text()),
            externalTrafficPolicy={"enum": ["", "Cluster", "Local"]},
        ),
        networkPolicy=table(
            ingressFrom=many(PEER), databaseTo=many(PEER), databasePort=whole(1, 65535), extraEgress=many(RULE)
        ),
        metrics=METRICS,
        **POD,
    )
    mount = {
        **table(
            name=text(r"^[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?$"), mountPath=text(r"^/\S+$"), volume=free("Source of a volume.")
        ),
        "required": ["name", "mountPath", "volume"],
    }
    participant = table(
        enabled=BOOLEAN,
        name=text(r"^([a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?)?$"),
        image=IMAGE,
        identity=table(existingSecret=SECRET),
        transport=table(existingSecret=SECRET),
        config=participant_config,
        caBundle=table(existingSecret=SECRET, existingConfigMap=SECRET, key=FILE_KEY),
        directory=table(existingSecret=SECRET, existingConfigMap=SECRET, key=FILE_KEY, use=BOOLEAN),
        proxyPassword=table(existingSecret=SECRET, key=FILE_KEY),
        data=table(mounts=many(mount)),
        state=STATE,
        networkPolicy=table(coordinatorTo=many(PEER), coordinatorPort=whole(0, 65535), extraEgress=many(RULE)),
        metrics=METRICS,
        **POD,
    )
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart veilsum",
        **table(
            **{"global": free("Helm's own: values that a parent chart hands down.")},
            nameOverride=text(r"^([a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?)?$"),
            fullnameOverride=text(r"^([a-z]([a-z0-9-]{0,38}[a-z0-9])?)?$"),
            imagePullSecrets=many({**table(name=text(NAME)), "required": ["name"]}),
            user=USER,
            log=table(format={"enum": ["json", "line"]}, level={"enum": ["debug", "info", "warning"]}),
            coordinator=coordinator,
            postgresql=table(enabled=BOOLEAN, image=IMAGE, user=USER, passwordKey=FILE_KEY, state=STATE, resources=RESOURCES),
            participant=participant,
            logins=logins,
            networkPolicy=table(enabled=BOOLEAN, dnsTo=many(PEER), monitoringFrom=many(PEER)),
            prometheusRule=table(enabled=BOOLEAN, labels=LABELS),
        ),
        "$defs": {name: parts[name] for name in sorted(parts)},
    }


def main(arguments: list[str]) -> int:
    """Write or check the file; returns the exit status."""
    wanted = json.dumps(build(), indent=1) + "\n"
    if "--check" in arguments:
        if SCHEMA.exists() and SCHEMA.read_text(encoding="utf-8") == wanted:
            return 0
        print(f"{SCHEMA} is stale: run `python deploy/helm/schema.py`", file=sys.stderr)
        return 1
    SCHEMA.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
