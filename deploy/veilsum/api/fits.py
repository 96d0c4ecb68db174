"""A released regression with statsmodels' names: ``params``, ``bse``, ``conf_int``, ``pvalues``, ``predict``, ``summary``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from veilsum.papers import Names, Term, numbers_text, p_text, terms_of
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import Z95
from veilsum_node.errors import ConfigurationError, Misuse, raising
from veilsum_node.process.software import install_extra
from veilsum_privacy.dossier.figures import cost as rounded_up
from veilsum_privacy.mechanism.rows.evaluation import Evaluation
from veilsum_privacy.mechanism.rows.symbols import joined, record_of, traced, where, whole
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.queries.cells import LevelDomain, NumberDomain, level_cells, number_cells
from veilsum_privacy.tasks.queries.language import Columns

if TYPE_CHECKING:
    import pandas as pd

COEFFICIENTS = "coefficients"
"""The table of a regression's result."""

FAMILIES = {"linear": "OLS", "logistic": "Logit", "poisson": "Poisson", "cox": "PHReg"}
"""What statsmodels calls them."""

WIDTH = 78
"""Characters of a summary's line, as statsmodels has them."""


@dataclass(frozen=True)
class Fitted:
    """Coefficients of a result of the method "regression".

    Coefficients are of logarithms of ratios but in a linear model, and per as many units as the study's ``per`` says. One
    that is not estimable is NaN.

    Attributes:
        rows: of the table of coefficients.
        study: signed, beside the result; None where it is not at hand.
        about: what is known of the study.
        tests: of all terms together.
    """

    rows: Sequence[Mapping[str, Any]]
    study: Study | None
    about: Mapping[str, Any]
    tests: Sequence[Mapping[str, Any]] = ()

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """In order; ``formula`` is the name in a design."""
        return tuple(terms_of(self.rows, Names(self.study)))

    @property
    def _names(self) -> list[str]:
        return [term.formula for term in self.terms]

    @property
    def _figures(self) -> list[Mapping[str, Any]]:
        return [term.row.get("log", term.row.get("coefficient", {})) for term in self.terms]

    def _of(self, values: Sequence[float]) -> pd.Series[float]:
        with raising(ConfigurationError("Series need pandas.", install_extra("notebook")), on=ImportError):
            import pandas as pd
        return pd.Series(np.asarray(values, dtype=np.float64), index=self._names)

    @property
    def params(self) -> pd.Series[float]:
        """Estimates by name."""
        return self._of([float(figure.get("value", math.nan)) for figure in self._figures])

    @property
    def _errors(self) -> list[float]:
        return [
            math.hypot(figure.get("noise_error", math.nan), figure.get("sampling_error", math.nan)) for figure in self._figures
        ]

    @property
    def bse(self) -> pd.Series[float]:
        """Standard errors, of noise and sampling together."""
        return self._of(self._errors)

    @property
    def tvalues(self) -> pd.Series[float]:
        """Estimates by their standard errors."""
        return self.params / self.bse

    @property
    def pvalues(self) -> pd.Series[float]:
        """That a coefficient is 0."""
        told = [term.row.get("p_value") for term in self.terms]
        return self._of([_two_sided(z) if p is None else float(p) for p, z in zip(told, self.tvalues, strict=True)])

    def conf_int(self, alpha: float = 0.05) -> pd.DataFrame:
        """Intervals, columns 0 and 1; those of 95% are the result's own.

        Raises:
            Misuse: alpha is not a share.
        """
        if not 0.0 < alpha < 1.0:
            raise Misuse(f"alpha = {alpha} is not between 0 and 1.", "0.05 is an interval of 95%.")
        with raising(ConfigurationError("Frames need pandas.", install_extra("notebook")), on=ImportError):
            import pandas as pd
        ends = []
        for figure in self._figures:
            value = float(figure.get("value", math.nan))
            low, high = (math.inf * sign if figure.get(end, math.nan) is None else float(figure.get(end, math.nan))
                         for end, sign in (("low", -1), ("high", 1)))  # fmt: skip
            ratio = _lengths(figure, low, high, alpha)
            ends.append((value - (value - low) * ratio, value + (high - value) * ratio))
        return pd.DataFrame(ends, index=self._names, columns=[0, 1])

    def predict(self, X: Any) -> Floats:  # noqa: N803  statsmodels' order of a frame
        """What the model predicts (n,) of a frame with the columns of its terms: means, probabilities, rates, or hazards
        relative to where all terms are 0 or at their reference; NaN where a value is missing.

        Raises:
            Misuse: the study is not at hand, or a coefficient is not estimable.
            DataError: a column is missing.
        """
        from veilsum.api.models import encode_frame

        if self.study is None:
            raise Misuse("The result has no proof beside it, whose study names the terms.", "Fetch it with its proof.")
        estimates = [float(figure.get("value", math.nan)) for figure in self._figures]
        if missing := [name for name, value in zip(self._names, estimates, strict=True) if math.isnan(value)]:
            raise Misuse(f"The coefficient of {missing[0]} is not estimable, so nothing is predicted.", "Ask without it.")
        parameters, columns, schema = self._columns()
        reads = self._reads(columns, [str(name) for name in parameters["over"]], str(parameters.get("offset", "")))
        narrow = schema.model_copy(update={"columns": tuple(own for own in schema.columns if own.name in reads)})
        if schema.label is not None and schema.label.column not in reads:
            narrow = narrow.model_copy(update={"label": None})
        records = encode_frame(X, narrow)
        found = Columns(narrow, self._derived(parameters, reads | set(columns.derived)))
        eta = self._predictor(found, narrow, records, dict(zip([t.name for t in self.terms], estimates, strict=True)))
        family = parameters["family"]
        if family == "linear":
            return eta
        return 1.0 / (1.0 + np.exp(-eta)) if family == "logistic" else np.exp(eta)

    def _columns(self) -> tuple[Mapping[str, Any], Columns, DatasetSchema]:
        assert self.study is not None  # noqa: S101  the caller looked
        parameters = self.study.parameters
        return parameters, Columns(self.study.data, self._derived(parameters, None)), self.study.data

    @staticmethod
    def _derived(parameters: Mapping[str, Any], names: set[str] | None) -> list[Any]:
        from veilsum_coordinator.parts.query_requests import DeriveRequest

        stated = parameters.get("derive", {})
        return [
            DeriveRequest.model_validate(own).column(name) for name, own in stated.items() if names is None or name in names
        ]

    @staticmethod
    def _reads(columns: Columns, over: Sequence[str], offset: str) -> set[str]:
        return set().union(*(columns.origins(name) for name in (*over, *([offset] if offset else []))))

    def _predictor(self, columns: Columns, schema: DatasetSchema, records: Any, by_term: Mapping[str, float]) -> Floats:
        from veilsum_coordinator.methods.regression import RegressionParameters

        assert self.study is not None  # noqa: S101
        parameters = self.study.parameters
        over, offset = [str(name) for name in parameters["over"]], str(parameters.get("offset", ""))
        per = RegressionParameters.model_validate(parameters).per  # numbers are signed as texts
        record = record_of(schema.width, labelled=schema.label is not None)
        cells = columns.cells(record)
        eta: Any = by_term.get("constant", 0.0)
        known: Any = np.True_
        for name in over:
            domain = columns.domains[name]
            if isinstance(domain, NumberDomain):
                number = number_cells(cells, name)
                eta = eta + (domain.low + (number.x + 1.0) * domain.half) * (by_term[name] / float(per.get(name, 1.0)))
                known = known & number.present
            elif isinstance(domain, LevelDomain):
                found = level_cells(cells, name)
                for place, level in enumerate(domain.levels):
                    eta = eta + where(found.codes == place, by_term.get(f"{name} {level}", 0.0), 0.0)
                known = known & found.present
        if offset:
            number, domain = number_cells(cells, offset), columns.number(offset, "offset")
            eta, known = eta + domain.low + (number.x + 1.0) * domain.half, known & number.present
        told: NDArray[Any] = np.concatenate(list(Evaluation(traced(joined(eta, whole(known)))).rows(records)))
        return np.where(told[:, 1] > 0.5, told[:, 0], np.nan)

    def summary(self) -> str:
        """The fit as text, in statsmodels' layout."""
        parameters = {} if self.study is None else self.study.parameters
        family = str(parameters.get("family", next((f for f, key in _KEYS.items() if key in self.rows[0]), "linear")))
        cost = self.about
        epsilon = (
            "none, exact sums" if cost.get("noise") == "none" else rounded_up(cost["epsilon"]) if cost.get("epsilon") else "?"
        )
        left = [("Dep. Variable:", str(parameters.get("outcome", "?"))), ("Model:", FAMILIES[family])]
        left.append(("Std. errors:", str(parameters.get("errors") or "model")))
        right = [
            ("No. sites:", str(cost.get("sites", "?"))),
            ("Epsilon:", epsilon),
            ("Delta:", f"{cost.get('delta', 0.0):.3g}"),
        ]
        lines = [f"{FAMILIES[family]} Regression Results".center(WIDTH).rstrip(), "=" * WIDTH]
        for (name, value), (other, told) in zip(left, right, strict=True):
            wide = 36 - len(name)
            lines.append(f"{name}{value[:wide].rjust(wide)}   {other}{told.rjust(WIDTH - 39 - len(other))}")
        longest = max([24, *(len(name) for name in self._names)])
        head = f"{'':{longest}} {'coef':>10} {'std err':>9} {'z':>9} {'P>|z|':>8} {'[0.025':>10} {'0.975]':>10}"
        lines += ["=" * len(head), head, "-" * len(head)]
        terms = zip(self._names, self.params, self.bse, self.tvalues, self.pvalues, self.conf_int().to_numpy(), strict=True)
        for name, value, error, z, p, (low, high) in terms:
            numbers = f"{_number(value, 10, 4)} {_number(error, 9, 3)} {z:9.3f} {p:8.3f}"
            lines.append(f"{name:{longest}} {numbers} {_number(low, 10, 3)} {_number(high, 10, 3)}")
        lines.append("=" * len(head))
        untold: dict[str, list[str]] = {}  # what is said of several terms is said once
        for term, figure in zip(self.terms, self._figures, strict=True):
            if "not_estimable" in figure:
                advice = f" What would help: {figure['advice']}." if figure.get("advice") else ""
                untold.setdefault(f"{figure['not_estimable']}.{advice}", []).append(term.formula)
        for reason, hidden in untold.items():
            every = "all terms" if len(hidden) == len(self.terms) > 1 else ", ".join(hidden)
            lines.append(f"Not estimable: {every}: {reason}")
        lines += [f"{test.get('test')}: P {p_text(test.get('p_value'))}" for test in self.tests]
        lines += [f"{numbers}." for numbers in [numbers_text(self.tests)] if numbers]
        lines.append("Errors and intervals are of sampling and noise together.")
        return "\n".join(lines)


_KEYS = {"logistic": "odds_ratio", "poisson": "rate_ratio", "cox": "hazard_ratio"}


def _number(value: float, width: int, digits: int) -> str:
    """With so many decimals, or as many significant digits where it is below 0.0001 or above 9999, as statsmodels has them."""
    plain = value == 0.0 or 1e-4 <= abs(value) < 1e4 or not math.isfinite(value)
    return f"{value:{width}.{digits}{'f' if plain else 'g'}}"


def _lengths(figure: Mapping[str, Any], low: float, high: float, alpha: float) -> float:
    """How many times as long as that of 95% the interval is: where it is longer than a normal one by the Student's
    distribution of its reach, by which p is told too."""
    from scipy.optimize import brentq
    from scipy.stats import norm, t

    error = math.hypot(*(figure.get(part) or 0.0 for part in ("noise_error", "sampling_error")))
    reach = (high - low) / 2.0 / error if error else Z95
    if not Z95 * (1.0 + 1e-6) < reach < math.inf:
        return float(norm.ppf(1.0 - alpha / 2.0)) / Z95
    degrees = brentq(lambda freedom: t.ppf(0.975, freedom) - reach, 0.1, 1e8)
    return float(t.ppf(1.0 - alpha / 2.0, degrees)) / reach


def _two_sided(z: float) -> float:
    return math.erfc(abs(z) / math.sqrt(2.0)) if math.isfinite(z) else math.nan
