"""A coordinator computes on one thread, whatever its environment says and however many processors there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
sys.argv = ["veilsum", "coordinator", "start", "--config", "nowhere.toml"]
from veilsum_deploy.cli import main
try:
    main()
except SystemExit:
    pass
import numpy, scipy.linalg
from threadpoolctl import threadpool_info
matrix = numpy.random.default_rng(0).normal(size=(250, 250))
print(json.dumps([
    [item["num_threads"] for item in threadpool_info()], numpy.linalg.solve(matrix @ matrix.T, matrix).tobytes().hex()[:4000]
]))
"""
"""The command fails for want of a configuration; what it set first holds for what is loaded after it."""


@pytest.mark.system
def test_numbers_do_not_depend_on_the_environment() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=240)
    threads, numbers = json.loads(done.stdout.splitlines()[-1])
    assert threads
    assert set(threads) == {1}
    assert numbers == _numbers()


def _numbers() -> str:
    """The same, computed with one thread by the library's own variable."""
    program = PROGRAM.replace("from veilsum_deploy.cli import main", "main = lambda: None")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=240)
    return str(json.loads(done.stdout.splitlines()[-1])[1])
