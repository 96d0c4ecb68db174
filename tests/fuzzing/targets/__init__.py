"""The targets by name; each is imported and made when it is wanted."""

from __future__ import annotations

import importlib

from fuzzing.driver import Target

TARGETS = {
    "objects": "objects:Objects",
    "sums": "sums:Sums",
    "exports": "ledgers:Exports",
    "backups": "ledgers:Backups",
    "configuration": "settings:Configuration",
    "environment": "settings:Environment",
    "requests": "requests:Requests",
    "certificates": "settings:Certificates",
    "csv": "data:Csv",
    "parquet": "data:Parquet",
    "ndjson": "data:Ndjson",
    "npz": "data:Npz",
    "encoders": "programs:Encoders",
    "results": "results:Results",
    "documents": "documents:Documents",
    "metrics": "sockets:MetricsEndpoint",
    "proxy": "sockets:ProxyAnswers",
    "coordinator": "coordinator:Coordinator",
    "participant": "participant:Participant",
}


def make(name: str) -> Target:
    """A fresh target."""
    module, kind = TARGETS[name].split(":")
    target = getattr(importlib.import_module(f"fuzzing.targets.{module}"), kind)()
    assert isinstance(target, Target)
    return target
