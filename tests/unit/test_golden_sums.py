"""Every task adds up the same integers as it always did, to the last one: ``tests/data/golden-sums.json``."""

from __future__ import annotations

import json

import numpy as np

from support.golden_sums import FILE, ROUNDED, cases, summary
from support.neighbours import NEIGHBOURS


def test_sums_are_those_that_were_recorded() -> None:
    golden, seen, wrong = json.loads(FILE.read_text(encoding="utf-8")), set(), []
    for name, case in cases():
        assert name not in seen
        seen.add(name)
        found = summary(name, case())
        if name.split("/")[0] in ROUNDED:  # made of reals, in an order that is the processor's
            near = np.abs(np.subtract(found["values"], golden[name]["values"])).max() <= 2
            wrong += [] if near else [name]
        elif found != golden[name]:
            wrong.append(name)
    assert not wrong
    assert seen == set(golden)
    assert {name.split("/")[0] for name in golden} == set(NEIGHBOURS) | {"local-training"}
