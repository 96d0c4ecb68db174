"""Results: a manifest and arrays, applied to records as ``veilsum apply`` does."""

from __future__ import annotations

import hashlib
import json
import random

import numpy as np

from fuzzing.mutation import mutate_json, write_json
from fuzzing.targets.base import Corpus
from veilsum_participant.applying.model import Model
from veilsum_privacy.results.result import ARRAYS, MANIFEST, Result, load_result, save_result


class Results(Corpus):
    """The manifest, or the arrays with their hash in it."""

    name = "results"
    readers = 2

    def __init__(self) -> None:
        super().__init__()
        features = [{"kind": "number", "name": name, "low": -1.0, "high": 1.0} for name in ("a", "b")]
        application = {
            "features": features,
            "head": {"kind": "linear", "weights": "weights", "bias": "bias"},
            "classes": ["no", "yes"],
        }
        arrays = {"weights": np.ones((2, 2)), "bias": np.zeros(2), "counts": np.arange(3)}
        self.bundle = self.directory / "bundle"
        result = Result("fedcgs", {"rounds": 1, "table": [{"a": 1}]}, arrays, application)
        save_result(self.bundle, result, study={"name": "s"})
        self.whole = {name: (self.bundle / name).read_bytes() for name in (MANIFEST, ARRAYS)}
        self.seeds = [[self.whole[MANIFEST]], [self.whole[ARRAYS]]]

    def build(self, rng: random.Random, reader: int) -> bytes | None:
        if rng.random() < 0.3:
            return None
        data = self.seeds[reader][0]
        if reader == 0:
            return write_json(mutate_json(rng, json.loads(data)))
        size = int.from_bytes(data[:8], "little")
        text = write_json(mutate_json(rng, json.loads(data[8 : 8 + size])))
        return len(text).to_bytes(8, "little") + text + data[8 + size :]

    def read(self, reader: int, data: bytes) -> None:
        if reader == 0:
            files = {MANIFEST: data, ARRAYS: self.whole[ARRAYS]}
        else:
            manifest = json.loads(self.whole[MANIFEST])
            manifest["files"][ARRAYS] = hashlib.sha256(data).hexdigest()
            files = {MANIFEST: json.dumps(manifest).encode(), ARRAYS: data}
        for name, content in files.items():
            (self.bundle / name).write_bytes(content)
        Model.from_result(load_result(self.bundle))
