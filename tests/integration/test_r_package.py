"""R's package (analyst/r/veilsum): its own tests and vignette by Debian's R, and its figures beside those of the Python API.

R and its packages are no part of `make tools`; docs/r.md says what to install.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilsum
from support.federation import make_bed, make_data
from support.network import wait_for, wired

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "analyst" / "r" / "veilsum"
NEEDED = ("reticulate", "tibble", "generics", "testthat", "knitr", "rmarkdown")

ASKED = """
library(veilsum)
federation <- veilsum_connect(Sys.getenv("SETTINGS"))
stopifnot(inherits(tryCatch(veilsum_dataset(federation, "nope"), error = identity), "veilsum_misuse"))
data <- veilsum_dataset(federation, "records", Sys.getenv("SCHEMA"), epsilon = 8)
exact <- function(x) if (is.double(x)) ifelse(is.na(x), NA, sprintf("%.17g", x)) else x
write <- function(table, name) write.csv(as.data.frame(lapply(table, exact), check.names = FALSE), name, row.names = FALSE)
summary(plan(ask_mean(data, c("x0", "x1"))))
means <- run(ask_mean(data, c("x0", "x1"), participants = c("a", "b", "c")), "means")
write(as_tibble(means), "means.csv")
write(tidy(means), "tidy-means.csv")
fit <- result(submit(ask_linear(data, x0 ~ x1 + I(x1^2))), "fit")
write(tidy(fit, conf.level = 0.9), "fit.csv")
drowned <- run(ask_mean(data, "x0", epsilon = 0.001), "drowned")
write(as_tibble(drowned), "drowned.csv")
print(veilsum_studies(federation))
unknown <- tryCatch(run(ask_mean(veilsum_dataset(federation, "other", Sys.getenv("SCHEMA"), epsilon = 1), "x0")),
                    veilsum_state_error = identity)
stopifnot(inherits(unknown, "veilsum_error"), grepl("dataset-not-offered", conditionMessage(unknown)))
close(federation)
cat("done\\n")
"""

SCHEMA = """
max_records = 1000
columns = [{ kind = "number", name = "x0", low = -1, high = 1 }, { kind = "number", name = "x1", low = -1, high = 1 }]
label = { column = "y", classes = [{ name = "c0", values = ["0"] }, { name = "c1", values = ["1"] }] }
"""

Run = Callable[..., str]


@pytest.fixture(scope="module")
def rscript() -> str:
    """R with the packages that it needs."""
    found = shutil.which("Rscript")
    if found is not None:
        tried = "quit(status = !all(vapply(commandArgs(TRUE), requireNamespace, TRUE, quietly = TRUE)))"
        if subprocess.run([found, "-e", tried, *NEEDED], capture_output=True, check=False).returncode == 0:
            return found
    pytest.skip("R with " + ", ".join(NEEDED) + " is not on this machine: docs/r.md names Debian's packages")


@pytest.fixture(scope="module")
def r(rscript: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program of R in a folder, with the package installed in a library of its own and this Python."""
    place = tmp_path_factory.mktemp("r")
    source, library = place / "veilsum", place / "library"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("__pycache__"))
    library.mkdir()
    rest = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    rest |= {"RETICULATE_PYTHON": sys.executable, "R_LIBS": str(library), "LC_ALL": "C.UTF-8", "NOT_CRAN": "true"}
    installer = [str(Path(rscript).parent / "R"), "CMD", "INSTALL", "--no-test-load", "-l", str(library), str(source)]
    subprocess.run(installer, env=rest, check=True, capture_output=True, timeout=300)

    def run(program: str, folder: Path, **more: str) -> str:
        file = folder / "program.R"
        file.write_text(program)
        done = subprocess.run(
            [rscript, str(file)], cwd=folder, env={**rest, **more}, capture_output=True, text=True, timeout=500, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def read(path: Path) -> pd.DataFrame:
    """A table that R wrote."""
    return pd.read_csv(path, float_precision="round_trip")


def agree(ours: Any, theirs: Any) -> None:
    """Numbers are the same, NaN where NaN; an end that is open is infinite in R."""
    ours, theirs = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    np.testing.assert_allclose(np.where(np.isinf(ours), np.nan, ours), np.where(np.isinf(theirs), np.nan, theirs), rtol=1e-14)


@pytest.mark.system  # R takes half a minute for its own tests
def test_its_own_tests_pass(r: Run, tmp_path: Path) -> None:
    tests = PACKAGE / "tests" / "testthat"
    program = "library(testthat); library(veilsum)\n"
    program += f"found <- test_dir('{tests}', reporter = 'check', package = 'veilsum', load_package = 'installed')\n"
    program += "found <- as.data.frame(found); stopifnot(sum(found$nb) > 70, !found$skipped); cat('passed\\n')"
    assert "passed" in r(program, tmp_path)


@pytest.mark.system
def test_the_vignette_runs(r: Run, tmp_path: Path) -> None:
    code = f"knitr::knit('{PACKAGE / 'vignettes' / 'veilsum.Rmd'}', 'page.md', quiet = TRUE); cat('knitted\\n')"
    assert "knitted" in r(code, tmp_path)
    page = (tmp_path / "page.md").read_text()
    assert page.count("![plot") == 2
    assert "Error" not in page
    assert "not est" in page
    assert "Did you mean 'age'?" in page


@pytest.mark.system
def test_a_real_federation_gives_r_what_it_gives_python(r: Run, tmp_path: Path) -> None:
    bed = make_bed(tmp_path / "bed", make_data("abc", 200, 2))
    with wired(bed) as (_, address, _stub):
        settings, schema = tmp_path / "analyst.toml", tmp_path / "schema.toml"
        settings.write_text(f'coordinator = "{address}"\nidentity = "{bed.kit.analyst.identity}"\n')
        schema.write_text(SCHEMA)
        with veilsum.connect(settings) as federation:
            wait_for(lambda: federation.participants == ("a", "b", "c"), "the sites")
        told = r(ASKED, tmp_path, SETTINGS=str(settings), SCHEMA=str(schema))
    assert told.endswith("done\n")
    means = veilsum.open_result(tmp_path / "means").to_pandas()
    theirs = read(tmp_path / "means.csv")
    assert {"mean", "mean_low", "mean_high", "standard_deviation"} <= set(theirs)
    for name in theirs.columns.intersection(means.select_dtypes("number").columns):
        agree(theirs[name], means[name])
    assert set(means.select_dtypes("number")) <= set(theirs)
    tidy = read(tmp_path / "tidy-means.csv")
    agree(tidy["estimate"][tidy["term"] == "mean"], means["mean"])
    errors = np.hypot(means["mean_noise_error"], means["mean_sampling_error"])
    agree(tidy["std.error"][tidy["term"] == "mean"], errors)
    fit, fitted = veilsum.open_result(tmp_path / "fit"), read(tmp_path / "fit.csv")
    assert fitted["term"].tolist() == list(fit.params.index)
    for name, values in {
        "estimate": fit.params,
        "std.error": fit.bse,
        "p.value": fit.pvalues,
        "statistic": fit.tvalues,
    }.items():
        agree(fitted[name], values)
    agree(fitted[["conf.low", "conf.high"]], fit.conf_int(0.1))
    lost = read(tmp_path / "drowned.csv")
    row = veilsum.open_result(tmp_path / "drowned").rows()[0]
    if "not_estimable" in row["mean"]:  # by far the most frequent; the count's noise may drown it or not
        assert lost["mean"].isna().all()
        assert row["mean"]["not_estimable"] in lost["mean_note"][0]


def test_its_version_is_the_platforms() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    own = re.findall(r"^Version: (\S+)$", (PACKAGE / "DESCRIPTION").read_text(), re.MULTILINE)[0]
    assert own == version.replace(".dev0", ".9000"), "R writes a development version as .9000"


def test_every_name_that_it_exports_is_documented() -> None:
    names = set(re.findall(r"[\w.]+", " ".join(re.findall(r"export\(([^)]*)\)", (PACKAGE / "NAMESPACE").read_text()))))
    pages = "".join(path.read_text() for path in (PACKAGE / "man").glob("*.Rd"))
    assert names <= set(re.findall(r"\\alias\{(.*?)\}", pages))
    questions = {name.removeprefix("ask_") for name in names if name.startswith("ask_")}
    asked = {name for name, value in vars(veilsum.Dataset).items() if callable(value) and not name.startswith("_")}
    assert questions == asked - {"with_options", "load"}, "a question of Python is one of R"
