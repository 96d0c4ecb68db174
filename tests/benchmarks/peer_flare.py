"""NVFlare's project and job for :mod:`benchmarks.peers`, and the job's submission; run by the peers' own interpreter.

    peer_flare.py prepare FOLDER PORT THROUGH KIND VALUES CLIENTS ROUNDS
    peer_flare.py submit ADMIN JOB

The job is NVFlare's ScatterAndGather over its own aggregator, in the clear (``fedavg``) or under CKKS as its HE parts do it
(``ckks``). What is ours is the vector, and the check of the mean: at the server in the clear, at clients under CKKS.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

PARTS = """
import os

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_component import FLComponent
from nvflare.app_common.abstract.model import ModelLearnableKey, make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType


def vector(values):
    return np.random.default_rng(0).standard_normal(values, dtype=np.float32)


def close(found, values):
    return np.abs(np.asarray(found, dtype=np.float32) - vector(values)).max() <= 1e-4


def tell(what):
    with open(os.environ["PEER_MARKS"], "a") as marks:
        marks.write(what + "\\n")


class Start(ModelPersistor):
    def __init__(self, values):
        super().__init__()
        self.values = values

    def load_model(self, context):
        return make_model_learnable({"w": np.zeros(self.values, dtype=np.float32)}, {})

    def save_model(self, model, context):
        pass


class Marks(FLComponent):
    def __init__(self, values):
        super().__init__()
        self.values = values

    def handle_event(self, kind, context):
        if kind == AppEventType.ROUND_DONE:
            found = context.get_prop(AppConstants.GLOBAL_MODEL)[ModelLearnableKey.WEIGHTS]["w"]
            tell("round" if not isinstance(found, np.ndarray) or close(found, self.values) else "the mean is off")


class Own(Executor):
    def __init__(self, values):
        super().__init__()
        self.values, self.later = values, False

    def execute(self, name, shareable, context, abort):
        if self.later and not close(from_shareable(shareable).data["w"], self.values):
            tell("a client's mean is off")
        self.later = True
        return DXO(DataKind.WEIGHTS, {"w": vector(self.values)}, {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}).to_shareable()
"""

COMMON, HE = "nvflare.app_common", "nvflare.app_opt.he"


def prepare(folder: Path, port: int, through: int, kind: str, values: int, clients: int, rounds: int) -> None:
    """Write ``project.yml``, for ``nvflare provision``, and the job."""
    build = "nvflare.lighter.impl"
    sites: list[dict[str, Any]] = [
        {"name": f"site-{number}", "type": "client", "org": "peer", "connect_to": {"host": "localhost", "port": through}}
        for number in range(clients)
    ]
    project = {
        "api_version": 3,
        "name": "peer",
        "description": "a peer",
        "participants": [
            {"name": "localhost", "type": "server", "org": "peer", "fed_learn_port": port},
            *sites,
            {"name": "admin@peer.org", "type": "admin", "org": "peer", "role": "project_admin"},
        ],
        "builders": [
            {"path": f"{build}.workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
            {"path": f"{build}.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
            {"path": f"{build}.he.HEBuilder"},
            {"path": f"{build}.cert.CertBuilder"},
            {"path": f"{build}.signature.SignatureBuilder"},
        ],
    }
    (folder / "project.yml").write_text(json.dumps(project))  # JSON is YAML
    app = folder / "job" / "app"
    for part in ("config", "custom"):
        (app / part).mkdir(parents=True)
    meta = {"name": "peer", "resource_spec": {}, "min_clients": clients, "deploy_map": {"app": ["@ALL"]}}
    (folder / "job" / "meta.json").write_text(json.dumps(meta))
    (app / "config" / "config_fed_server.json").write_text(json.dumps(_server(kind, values, clients, rounds)))
    (app / "config" / "config_fed_client.json").write_text(json.dumps(_client(kind, values)))
    (app / "custom" / "parts.py").write_text(PARTS)


def _server(kind: str, values: int, clients: int, rounds: int) -> dict[str, Any]:
    if kind == "ckks":
        generator = f"{HE}.model_shareable_generator.HEModelShareableGenerator"
        aggregator = f"{HE}.intime_accumulate_model_aggregator.HEInTimeAccumulateWeightedAggregator"
    else:
        generator = f"{COMMON}.shareablegenerators.full_model_shareable_generator.FullModelShareableGenerator"
        aggregator = f"{COMMON}.aggregators.intime_accumulate_model_aggregator.InTimeAccumulateWeightedAggregator"
    weighed = {"weigh_by_local_iter": False} if kind == "ckks" else {}  # clients do, before they encrypt
    return {
        "format_version": 2,
        "components": [
            {"id": "persistor", "path": "parts.Start", "args": {"values": values}},
            {"id": "generator", "path": generator, "args": {}},
            {"id": "aggregator", "path": aggregator, "args": {"expected_data_kind": "WEIGHTS", **weighed}},
            {"id": "marks", "path": "parts.Marks", "args": {"values": values}},
        ],
        "workflows": [
            {
                "id": "rounds",
                "path": f"{COMMON}.workflows.scatter_and_gather.ScatterAndGather",
                "args": {
                    "min_clients": clients,
                    "num_rounds": rounds,
                    "wait_time_after_min_received": 0,
                    "aggregator_id": "aggregator",
                    "persistor_id": "persistor",
                    "shareable_generator_id": "generator",
                    "train_task_name": "train",
                    "persist_every_n_rounds": 0,
                    "snapshot_every_n_rounds": 0,
                },
            }
        ],
    }


def _client(kind: str, values: int) -> dict[str, Any]:
    def filters(path: str) -> list[dict[str, Any]]:
        return [{"tasks": ["train"], "filters": [{"path": path, "args": {}}]}] if kind == "ckks" else []

    return {
        "format_version": 2,
        "executors": [{"tasks": ["train"], "executor": {"path": "parts.Own", "args": {"values": values}}}],
        "task_data_filters": filters(f"{HE}.model_decryptor.HEModelDecryptor"),
        "task_result_filters": filters(f"{HE}.model_encryptor.HEModelEncryptor"),
        "components": [],
    }


def submit(admin: str, job: str) -> None:
    """Submit the job as the administrator."""
    api: Any = importlib.import_module("nvflare.fuel.flare_api.flare_api")
    session = api.new_secure_session("admin@peer.org", admin)
    session.submit_job(job)
    session.close()


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    if what == "submit":
        submit(*given)
    else:
        folder, port, through, kind, *numbers = given
        prepare(Path(folder), int(port), int(through), kind, *map(int, numbers))
