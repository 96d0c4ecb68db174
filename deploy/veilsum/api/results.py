"""A study's result: tables as frames, pictures, text for papers, its provenance and its proof, and the model it may hold."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509

from veilsum.api.fits import COEFFICIENTS, Fitted
from veilsum.api.frames import arrow_table, pandas_frame
from veilsum.api.notebook import enable_figures
from veilsum.exports import (
    SUMMARY,
    belongs,
    cell,
    drawings,
    export_result,
    figures_of,
    plain_table,
    table_html,
    tables_of,
    to_csv,
    to_html,
)
from veilsum.papers import SUBGROUPS, Names, PaperTable, documents_of, paper_tables
from veilsum.pictures import draw
from veilsum.provenance import read_manifest, signed_study, stated_cost, stated_study
from veilsum_aggregation.arrays import Floats
from veilsum_node.config import did_you_mean
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse, StateError
from veilsum_node.file_names import write_files
from veilsum_privacy.results.result import Result, copy_result, load_result
from veilsum_privacy.study.study import Study

if TYPE_CHECKING:
    import pandas as pd

    from veilsum.api.federation import Federation
    from veilsum.api.models import Classifier, Encoder, Regressor
    from veilsum.verification import Verified

ASKED = "queries"
"""The table of a result of statistics that says what was asked, which tells nothing about the records."""


@dataclass(frozen=True)
class StudyResult:
    """The result of a study, as its files hold it. It contains no code and no record.

    Attributes:
        directory: of the files.
        authority: the federation's certificate, by which the proof is checked; None where it is not known.
        cost: epsilon, delta and unit that the study declared; empty where the study is not at hand.
        keeps: what deletes the files with the object; None where they stay.
    """

    directory: Path
    authority: x509.Certificate | None = None
    cost: Mapping[str, Any] = field(default_factory=dict)
    keeps: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    @cached_property
    def content(self) -> Result:
        """Method, summary, arrays, and how to apply them."""
        return load_result(self.directory)

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.content.method

    @cached_property
    def tables(self) -> dict[str, list[Mapping[str, Any]]]:
        """The result's tables as lists of rows, by name; a figure is a mapping with ``value``, ``low``, ``high``, errors."""
        return {name: rows for name, rows in tables_of(self.content).items() if name != ASKED}

    def rows(self, table: str | None = None) -> Sequence[Mapping[str, Any]]:
        """The rows of a table; its name may be left out where one question was asked: then it is the first.

        ``summary`` has what the result tells outside of its tables, such as how many records there were: name and value.

        Raises:
            Misuse: the table does not exist, or several questions were asked and none is named.
        """
        name = self._named(table)
        return self.tables[name] if name in self.tables else figures_of(self.content)

    def to_pandas(self, table: str | None = None) -> Any:
        """A table as a pandas frame; a figure becomes columns ``mean``, ``mean_low``, ``mean_high``, ``mean_noise_error``, ...

        Args:
            table: its name; by default, where one question was asked, the first.

        Raises:
            Misuse: as :meth:`rows`.
            ConfigurationError: pandas is not installed.
        """
        return pandas_frame(self.rows(table))

    def to_arrow(self, table: str | None = None) -> Any:
        """A table as an Arrow table, for polars, DuckDB and others; columns as of :meth:`to_pandas`."""
        return arrow_table(self.rows(table))

    def to_csv(self, table: str | None = None) -> str:
        """A table as CSV."""
        return to_csv(self.rows(table))

    @cached_property
    def study(self) -> Study | None:
        """The signed study, by whose schema tables and pictures are labelled; None where no proof lies beside the result."""
        return signed_study(self.directory)

    def papers(self, nonnormal: Sequence[str] = ()) -> dict[str, PaperTable]:
        """The tables that have a form for papers, by name: a table one, coefficients, survival, subgroups.

        Args:
            nonnormal: numbers of which a table one shows the median and the quartiles alone, if the study asked for these.
        """
        private = self.about.get("noise") != "none"
        return paper_tables(tables_of(self.content), self.study, nonnormal, private=private)

    def paper(self, table: str | None = None, *, nonnormal: Sequence[str] = ()) -> PaperTable:
        """One of :meth:`papers`, the first by default: ``text``, ``to_html()``, ``to_latex()``, ``to_docx()``.

        Raises:
            Misuse: there is none of the name.
        """
        found = self.papers(nonnormal)
        if table is None and found:
            return next(iter(found.values()))
        if table not in found:
            known = ", ".join(found) or "none; to_latex() and to_html() have the others"
            raise Misuse(f"The result has no table {repr(table) if table else 'for papers'}.", f"Tables for papers: {known}.")
        return found[table]

    def to_latex(self, table: str | None = None) -> str:
        """A table for a paper, with ``booktabs`` rules; of one without a form of its own a figure is one cell,
        ``61.2 (59.8 to 62.7)``."""
        found = self.papers()
        if table in found or (table is None and len(found) == 1):
            return self.paper(table).to_latex()
        return plain_table(self.rows(table), self._named(table), Names(self.study)).to_latex()

    def to_html(self, table: str | None = None) -> str:
        """A page with every table and picture, and the study; with ``table`` that one alone, a ``<table>`` to paste."""
        if table is None:
            return to_html(self.content, self.about, self.study)
        return self.paper(table).to_html() if table in self.papers() else table_html(self.rows(table))

    def to_docx(self, path: str | Path, table: str | None = None, *, nonnormal: Sequence[str] = ()) -> Path:
        """Write the tables for papers, or one of them, as a document of Word.

        Raises:
            Misuse: the result has no table for papers.
            Unavailable: it cannot be written.
        """
        target = Path(path)
        found = [self.paper(table, nonnormal=nonnormal)] if table else list(self.papers(nonnormal).values())
        if not found:
            raise Misuse("The result has no table for papers.", "Export it as csv.")
        (written,) = write_files(target.parent, {target.name: documents_of(found)}, replace=True)
        return written

    def plot(self, table: str | None = None) -> Any:
        """A table as a matplotlib figure: survival curves with bands, or figures with their intervals.

        Raises:
            Misuse: as :meth:`rows`, or the table has nothing to draw.
            ConfigurationError: matplotlib is not installed.
        """
        drawn = drawings(self.content, self.study)
        one_forest = table is None and SUBGROUPS in drawn
        name = SUBGROUPS if one_forest else table if table in drawn else self._named(table)
        figure = draw(name, drawn[name]) if name in drawn else None
        if figure is None:
            raise Misuse(f"The table {name!r} has no figure with an interval to draw.", "Name another table.")
        enable_figures()
        return figure

    def export(
        self,
        directory: str | Path,
        formats: Sequence[str] = ("csv", "html"),
        *,
        site: str | None = None,
        replace: bool = False,
        nonnormal: Sequence[str] = (),
    ) -> list[Path]:
        """Write all tables and pictures: ``csv``, ``html``, ``latex``, ``word``, ``text``, ``svg``, ``png``; or the model:
        ``onnx``, ``xgboost``, ``peft``.

        Args:
            directory: of the files.
            formats: which of them.
            site: whose alignment an ONNX file applies, of a result with one for each site.
            replace: replace files that are there with other content, which is an error without it.
            nonnormal: as of :meth:`papers`.

        Returns:
            The files, all in the directory, named for their tables.

        Raises:
            StateError: another file of a name is there; then nothing is written.
            Unavailable: the directory cannot be written.
        """
        more: dict[str, Any] = {"about": self.about, "site": site, "replace": replace, "study": self.study}
        return export_result(self.content, Path(directory), list(formats), nonnormal=nonnormal, **more)

    def to_onnx(
        self, path: str | Path, *, site: str | None = None, from_features: bool = False, replace: bool = False
    ) -> Path:
        """Write the model that the result holds as an ONNX file; its metadata name study, epsilon and delta.

        Args:
            path: of the file.
            site: whose alignment is applied, of a result with one for each site.
            from_features: begin behind the encoder, with features in place of columns, where that is a frozen program.
            replace: replace a file that is there with other content, which is an error without it.

        Raises:
            StateError: another file is there.
            Unavailable: it cannot be written.
            Misuse: the result holds no model, or one with a step that ONNX does not have; the message says what to do.
            ConfigurationError: onnx is not installed.
        """
        from veilsum.onnx_model import exported_model, write_onnx

        model = exported_model(self.content)
        return write_onnx(model, Path(path), self.about, site=site, from_features=from_features, replace=replace)

    def save(self, directory: str | Path) -> StudyResult:
        """Copy the result's files, with their proof, to a new directory.

        Raises:
            StateError: it exists.
        """
        target = Path(directory)
        if target.exists():
            raise StateError(f"{target} exists already.", "Choose another directory.")
        copy_result(self.directory, target, proof=True)
        return StudyResult(target, self.authority, self.cost)

    def to_mlflow(self, tracking_uri: str, experiment: str, *, dossier: str | None = None, proof: bool = False) -> str:
        """Write the result to an MLflow tracking server: study, method, epsilon and delta as parameters, the released numbers
        as metrics, and files. A second export of the same study finds its run and adds nothing.

        Args:
            tracking_uri: of the server, such as ``http://127.0.0.1:5000``.
            experiment: its name; made where there is none.
            dossier: address of a dossier on the study, which the run links to.
            proof: also send the proof, which names every site of the roster.

        Returns:
            The run's id.

        Raises:
            ConfigurationError: MLflow's client is not installed.
            Misuse: the result names no study, or the experiment was deleted or has a run of the study with another result.
            Unavailable: the server cannot be reached, or refuses.
        """
        from veilsum.mlflow_run import log_result

        return log_result(self.directory, self.about, tracking_uri, experiment, dossier=dossier, proof=proof)

    def model(
        self, *, site: str | None = None, encoder: str | Path | None = None, weights: str | Path | None = None
    ) -> Classifier | Regressor | Encoder:
        """The model that the result holds, with scikit-learn's interface.

        Args:
            site: whose alignment is applied, of a result with one for each site.
            encoder: file of the frozen program, for a result that needs one.
            weights: file of a network's frozen weights, for a result of adapters.

        Raises:
            Misuse: the result holds tables, and no model.
        """
        from veilsum.api.models import open_model

        given = [None if path is None else Path(path) for path in (encoder, weights)]
        model = open_model(self.content, *given, site=site)
        model.about = self.about
        return model

    # -- a regression, with statsmodels' names -----------------------------------------------------------------------------

    @cached_property
    def fitted(self) -> Fitted:
        """The coefficients of a regression.

        Raises:
            Misuse: the result is of another method.
        """
        if COEFFICIENTS not in self.tables or self.method != "regression":
            raise Misuse(f"A result of {self.method} has no coefficients.", "Ask linear, logistic, poisson or cox.")
        about = {**self.about, "sites": self.content.summary.get("cohort", "?")}
        return Fitted(self.tables[COEFFICIENTS], self.study, about, self.tables.get(f"{COEFFICIENTS} tests", ()))

    @property
    def params(self) -> pd.Series[float]:
        """Estimates by name, of logarithms of ratios but in a linear model."""
        return self.fitted.params

    @property
    def bse(self) -> pd.Series[float]:
        """Their standard errors, of sampling and noise together."""
        return self.fitted.bse

    @property
    def tvalues(self) -> pd.Series[float]:
        """Estimates by their standard errors."""
        return self.fitted.tvalues

    @property
    def pvalues(self) -> pd.Series[float]:
        """That a coefficient is 0."""
        return self.fitted.pvalues

    def conf_int(self, alpha: float = 0.05) -> pd.DataFrame:
        """Intervals of coefficients, columns 0 and 1."""
        return self.fitted.conf_int(alpha)

    def predict(self, X: Any) -> Floats:  # noqa: N803  as scikit-learn and statsmodels name it
        """Means, probabilities, rates or relative hazards (n,) of a frame (:meth:`veilsum.api.fits.Fitted.predict`)."""
        return self.fitted.predict(X)

    # -- where it comes from -----------------------------------------------------------------------------------------------

    @property
    def about(self) -> dict[str, Any]:
        """The study's name and method, and its cost as far as known, which exported files state as their origin."""
        return {**stated_study(self.directory), **self.cost}

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """What a paper should state of the result, namely study, digest, method, cost, and the sums that it was made of."""
        from veilsum_node.process.software import installed_version

        manifest = read_manifest(self.directory)
        return {
            "study": manifest["study"].get("name"),
            "digest": manifest["study"].get("digest"),
            "method": manifest["method"],
            **self.cost,
            "releases": manifest.get("releases", []),
            "software": installed_version(),
        }

    def verify(
        self, authority: str | Path | None = None, *, uses: str | Path | None = None, tolerance: float = 0.0
    ) -> Verified:
        """Check the result by its proof, offline: every signature, and every number, which is computed again.

        Args:
            authority: file of the federation's certificate; by default the one that the result was fetched under.
            uses: folder of results that the study builds on, if it evaluates a released model.
            tolerance: relative difference that is let pass, where a machine rounds differently.

        Returns:
            What was verified, which ``proves`` and ``leaves_open`` say in sentences.

        Raises:
            ProofFault: names the first thing that does not hold.
            Misuse: no certificate is known.
        """
        from veilsum.verification import verify_result
        from veilsum_node.identity.certificate import load_authority

        certificate = self.authority if authority is None else load_authority(Path(authority))
        if certificate is None:
            raise Misuse("The federation's certificate is not known.", "Give the file: verify('authority.pem').")
        return verify_result(self.directory, certificate, uses=None if uses is None else Path(uses), tolerance=tolerance)

    # -- how it is shown ---------------------------------------------------------------------------------------------------

    def summary(self) -> str:
        """The result as text: of a regression in statsmodels' layout, of others the tables, a line a row."""
        if self.method == "regression" and self.tables.get(COEFFICIENTS):
            return self.fitted.summary()
        parts = []
        for name, rows in self.tables.items():
            keys = list(dict.fromkeys(key for row in rows for key in row))
            lines = [keys, *([cell(row.get(key)) for key in keys] for row in rows)]
            widths = [max(len(line[place]) for line in lines) for place in range(len(keys))]
            parts.append(name)
            parts += ["  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        single = {name: value for name, value in self.content.summary.items() if name not in self.tables and name != ASKED}
        parts += [f"{name}: {cell(value)}" for name, value in single.items()]
        return "\n".join(parts)

    def _named(self, table: str | None) -> str:
        if table is None and self.tables and len(self.content.summary.get(ASKED, ())) <= 1:
            return next(iter(self.tables))
        known = ", ".join(self.tables) or "none: it holds a model, see model()"
        if table is None:
            raise Misuse(f"The result has {len(self.tables)} tables.", f"Name one: {known}.")
        if table not in self.tables and (table != SUMMARY or not figures_of(self.content)):
            raise Misuse(f"The result has no table {table!r}.", did_you_mean(table, self.tables) or f"Tables: {known}.")
        return table

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return f"<StudyResult of {self.method}: {', '.join(self.tables) or 'a model'}>"

    def _repr_html_(self) -> str:
        import html

        found = self.papers()
        parts = [f"<h4>{html.escape(name)}</h4>{table.to_html()}" for name, table in found.items()]
        parts += [
            f"<h4>{html.escape(name)}</h4>{table_html(rows)}"
            for name, rows in self.tables.items()
            if name not in found and not belongs(name, found)
        ]
        return "".join(parts) or f"<pre>{html.escape(self.summary())}</pre>"


def open_result(directory: str | Path, authority: str | Path | None = None) -> StudyResult:
    """Open a result that was stored, by ``save``, by ``run(directory)`` or by ``veilsum study result``.

    Args:
        directory: of its files.
        authority: the federation's certificate, which ``verify`` needs.

    Raises:
        ConfigurationError: the directory does not exist.
        HostileInput: it holds no readable result.
    """
    from veilsum_node.identity.certificate import load_authority

    place = Path(directory)
    if not place.is_dir():
        raise ConfigurationError(f"{place} is not a directory.", "Name the directory that holds manifest.json.")
    certificate = None if authority is None else load_authority(Path(authority))
    result = StudyResult(place, certificate, stated_cost(place))
    _ = result.content
    return result


def fetched_result(federation: Federation, key: bytes, directory: Path | None) -> StudyResult:
    """Fetch a finished study's result and verify it by its proof.

    Raises:
        HostileInput: it is not proven by its sums.
    """
    from veilsum.verification import look_at

    temporary = tempfile.TemporaryDirectory(prefix="veilsum-") if directory is None else None
    place = directory or Path(temporary.name if temporary else "")
    federation.coordinator.fetch(key, place)
    found = look_at(place, federation.credentials.authority, key)
    if found.verified is None:
        advice = "Do not use it. `veilsum study result --no-proof` fetches it for inspection."
        raise HostileInput(f"The result is not proven: {found.fault or found.missing}", advice)
    privacy = found.verified.study.study.privacy
    cost = {"epsilon": privacy.epsilon, "delta": privacy.delta, "noise": privacy.noise, "unit": privacy.unit}
    return StudyResult(place, federation.credentials.authority, cost, temporary)
