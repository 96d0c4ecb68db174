"""What a process loads when it starts: nothing that only some studies, or other processes, need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def loaded(code: str) -> set[str]:
    """Names of the top-level packages in a fresh interpreter after ``code``."""
    show = "\nimport json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code + show], check=True, capture_output=True, text=True)
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return set(found)


HELP = """
import contextlib, io, sys
from veilsum_deploy.cli import main
for nouns in ([], ["simulate"], ["study"], ["study", "plan"]):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as said:
        main([*nouns, "--help"])
    assert "Usage: veilsum " + " ".join(nouns) in said.getvalue(), said.getvalue()
    assert nouns or "pydantic" not in sys.modules
"""

PLAN = """
import contextlib, io, os, tempfile
from pathlib import Path
from veilsum_deploy.cli import main
os.chdir(tempfile.mkdtemp())
Path("study.toml").write_text(
    'name = "ages"\\nmethod = "statistics"\\ndataset = "records"\\n'
    '[privacy]\\nepsilon = 1.0\\n[data]\\nmax_records = 100\\n'
    '[[data.columns]]\\nkind = "number"\\nname = "age"\\nlow = 0\\nhigh = 100\\n'
)
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as said:
    main(["study", "plan", "study.toml", "--participants", "3"])
assert "age" in said.getvalue(), said.getvalue()
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("code", "needed", "without"),
    [
        (
            "import veilsum_participant.session.client",
            {"numpy", "sqlalchemy"},
            {"grpc", "pyarrow", "scipy", "pandas", "torch", "sklearn", "opacus", "typer", "rich", "matplotlib", "tenseal"},
        ),
        (
            "import veilsum_participant.front.answering",
            {"grpc"},
            {"numpy", "sqlalchemy", "tenseal", "pyarrow", "torch", "veilsum_privacy", "veilsum_aggregation"},
        ),
        (
            "import veilsum.remote, veilsum.drafts, veilsum.api.federation",
            {"grpc", "numpy"},
            {"sqlalchemy", "tenseal", "pandas", "torch", "sklearn", "opacus", "matplotlib", "jinja2"},
        ),
        (
            "import veilsum_coordinator.service.server",
            {"grpc", "sqlalchemy"},
            {"scipy", "pandas", "torch", "sklearn", "jinja2"},
        ),
        (
            PLAN,
            {"numpy"},
            {"sqlalchemy", "grpc", "google", "pyarrow", "pandas", "torch", "tenseal", "scipy", "sklearn", "jinja2"}
            | {"cryptography", "safetensors"},
        ),
        (HELP, {"typer"}, {"numpy", "sqlalchemy", "grpc", "torch", "tenseal", "pyarrow", "scipy", "pandas", "jinja2"}),
    ],
    ids=["participant", "front", "analyst", "coordinator", "plan", "help"],
)
def test_what_starts_loads_what_it_uses(code: str, needed: set[str], without: set[str]) -> None:
    found = loaded(code)
    assert needed <= found
    assert not without & found


def test_no_plugin_that_is_installed_beside_it_sees_what_is_read(tmp_path: Path) -> None:
    """pydantic would hand every value to it, passwords too, and searches all installed packages for one."""
    spy = "def new_schema_validator(*_, **__): return None, None, None\nopen(__file__ + '.seen', 'w').close()\n"
    (tmp_path / "spy.py").write_text(spy)
    about = tmp_path / "spy-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: spy\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[pydantic]\nspy = spy\n")
    model = "import pydantic\nclass Model(pydantic.BaseModel): value: int\n"
    where = {name: value for name, value in os.environ.items() if name != "PYDANTIC_DISABLE_PLUGINS"}
    where["PYTHONPATH"] = str(tmp_path)
    for code, expected in ((PLAN, False), (model, True)):
        subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=where, capture_output=True)
        assert (tmp_path / "spy.py.seen").exists() is expected


PRODUCTS = """
import sys
from threadpoolctl import threadpool_info
from veilsum_participant.session import whole
assert "numpy" not in sys.modules
def begin(config):
    import numpy
    print([item["num_threads"] for item in threadpool_info() if item["user_api"] == "blas"])
whole.begin = begin
from veilsum_participant.cli import main
main(["participant", "start"])
"""


@pytest.mark.parametrize("stated", [None, "2"])
def test_a_participant_makes_products_on_one_thread_unless_told_otherwise(stated: str | None) -> None:
    """They are made in small parts; more threads wait for each other, and take twice the processor."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    environment |= {} if stated is None else {"OPENBLAS_NUM_THREADS": stated}
    done = subprocess.run([sys.executable, "-c", PRODUCTS], check=True, capture_output=True, text=True, env=environment)
    assert json.loads(done.stdout) == [min(int(stated or 1), os.cpu_count() or 1)]
