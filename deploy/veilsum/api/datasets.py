"""A dataset of a federation: questions about it, each of which is a study that costs nothing before it is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from veilsum.api.notebook import fields_html, plain_text
from veilsum.api.options import Names, Options, Question, as_list, merged
from veilsum.api.studies import Study
from veilsum.formulas import formula_parameters, has_formula, offset_parameters
from veilsum.papers import SUBGROUPS
from veilsum.request import EVALUATION, load_study_request
from veilsum_node.errors import ConfigurationError, Misuse
from veilsum_privacy.study.schema import CategoryColumn, Column, DatasetSchema, DateColumn

if TYPE_CHECKING:
    from veilsum.api.federation import Federation
    from veilsum.api.results import StudyResult

Errors = Literal["model", "clustered", "robust"]
"""The kinds of standard errors of a regression's coefficients."""

Query = Mapping[str, Any]
"""A question of the method ``statistics``, with the keys of a ``[[query]]`` table."""


@dataclass(frozen=True)
class Dataset:
    """A dataset as its sites offer it. No method here reads a record or spends anything: each returns a :class:`Study`.

    Columns are named as in the schema, or as ``derive`` names them. ``over`` takes a name or a list of names, ``by`` columns
    with categories, every combination of whose levels is a group, ``where`` a condition such as ``"age >= 65"``. All take
    the keywords of :class:`~veilsum.api.options.Options`, of which one of ``epsilon``, ``error`` and ``noise`` has to be
    stated before a study is planned or run, as its own or as the dataset's.

    Attributes:
        federation: whose sites hold it.
        name: as the sites offer it.
        schema: its columns with their public bounds.
        options: of every study, unless it states others.
    """

    federation: Federation
    name: str
    schema: DatasetSchema
    options: Options = field(default_factory=Options)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, that of the label last."""
        label = () if self.schema.label is None else (self.schema.label.column,)
        return (*(column.name for column in self.schema.columns), *label)

    def with_options(self, **options: Unpack[Options]) -> Dataset:
        """The same dataset with other options for its studies."""
        return Dataset(self.federation, self.name, self.schema, merged(self.options, options))

    # -- statistics --------------------------------------------------------------------------------------------------------

    def count(self, over: Names = (), *, by: Names = (), where: str = "", **options: Unpack[Options]) -> Study:
        """How many records; with ``over``, how many with each combination of categories, with shares."""
        return self._ask("count", options, over=over, by=by, where=where)

    def mean(self, over: Names, *, by: Names = (), where: str = "", **options: Unpack[Options]) -> Study:
        """Means and standard deviations of numbers."""
        return self._ask("mean", options, over=over, by=by, where=where)

    def table(
        self,
        over: Names = (),
        *,
        by: Names = (),
        at: Sequence[float] = (),
        where: str = "",
        missing: Literal["", "drop", "level"] = "",
        **options: Unpack[Options],
    ) -> Study:
        """A table one: means of numbers and counts of categories, with quantiles ``at``, by group with a test of each.

        Values that are ``missing`` have rows, which tests compare with "level" alone; with "drop" they are left out.
        """
        return self._ask("table-one", options, over=over, by=by, at=at, where=where, missing=missing)

    def compare(self, over: Names, *, by: Names, where: str = "", **options: Unpack[Options]) -> Study:
        """Means of numbers by group, with a test that they are equal."""
        return self._ask("compare", options, over=over, by=by, where=where)

    def histogram(self, over: str, *, edges: Any = (), by: Names = (), where: str = "", **options: Unpack[Options]) -> Study:
        """How many records in each interval of a number; ``edges`` is a list, or ``{"from": 0, "to": 90, "steps": 9}``."""
        return self._ask("histogram", options, over=over, edges=edges, by=by, where=where)

    def quantiles(
        self,
        over: str,
        *,
        at: Sequence[float] = (),
        edges: Any = (),
        by: Names = (),
        where: str = "",
        **options: Unpack[Options],
    ) -> Study:
        """Quantiles of a number, the quartiles by default."""
        return self._ask("quantiles", options, over=over, at=at, edges=edges, by=by, where=where)

    def independence(self, row: str, column: str, *, where: str = "", **options: Unpack[Options]) -> Study:
        """A table of two columns with categories, with the test that they are independent."""
        return self._ask("independence", options, over=(row, column), where=where)

    def subgroups(self, treatment: str, outcome: str, by: Names, *, where: str = "", **options: Unpack[Options]) -> Study:
        """The odds ratio of an outcome by treatment among all and by subgroup, for one forest: ``run().plot()``.

        Args:
            treatment: a category, whose first level is compared with the others.
            outcome: a category of two levels, the second of which is the event.
            by: columns with categories, each of which makes subgroups of its own.
            where: which records.
            options: of the study.
        """
        names = as_list(by)
        common = {"kind": "independence", "over": [treatment, outcome], **({"where": where} if where else {})}
        asked = [{**common, "name": SUBGROUPS}]
        asked += [{**common, "name": f"{SUBGROUPS}-{place}", "by": [name]} for place, name in enumerate(names, 1)]
        return self.statistics(*asked, **options)

    def correlation(self, over: Sequence[str], *, where: str = "", **options: Unpack[Options]) -> Study:
        """Correlations of numbers."""
        return self._ask("correlation", options, over=over, where=where)

    def missing(self, over: Names = (), *, by: Names = (), where: str = "", **options: Unpack[Options]) -> Study:
        """How many values are missing, of all columns by default."""
        return self._ask("missing", options, over=over, by=by, where=where)

    def survival(
        self,
        time: str,
        *,
        event: str,
        censored: Names,
        edges: Any,
        by: Names = (),
        at: Sequence[float] = (),
        where: str = "",
        **options: Unpack[Options],
    ) -> Study:
        """The curve of the time to an event, its median, and by group the log-rank test.

        Args:
            time: column of the times.
            event: column that tells how each ended.
            censored: its categories that do not count as the event.
            edges: ends of the intervals of time: a list, or ``{"from": 0, "to": 2190, "steps": 6}``.
            by: groups.
            at: shares of records with the event, whose times are told; the median by default.
            where: which records.
            options: of the study.
        """
        return self._ask(
            "survival", options, over=time, event=event, censored=censored, edges=edges, by=by, at=at, where=where
        )

    def discrimination(
        self,
        score: str,
        outcome: str,
        *,
        event: str = "",
        censored: Names = (),
        edges: Any = (),
        where: str = "",
        **options: Unpack[Options],
    ) -> Study:
        """How well a score ranks an event (a condition), or the time to one (with ``event``, ``censored`` and ``edges``)."""
        return self._ask(
            "discrimination", options, over=score, outcome=outcome, event=event, censored=censored, edges=edges, where=where
        )

    def effect(self, treatment: str, outcome: str, *, score: str, where: str = "", **options: Unpack[Options]) -> Study:
        """A treatment's effect under weights by the inverse probability of the treatment; ``score`` is its log odds."""
        return self._ask("effect", options, over=score, by=treatment, outcome=outcome, where=where)

    def synthetic(self, over: Names = (), *, where: str = "", **options: Unpack[Options]) -> Study:
        """Made-up records with the noised tables of all pairs of columns."""
        return self._ask("synthetic", options, over=over, where=where)

    def statistics(self, *questions: Study | Query, **options: Unpack[Options]) -> Study:
        """Several questions in one release, which share its epsilon; without any, an overview of all columns.

        Args:
            questions: studies that the methods above made, or ``[[query]]`` tables as mappings.
            options: of the study; those of the questions do not count.

        Raises:
            Misuse: a question is a study of another method.
        """
        asked: list[dict[str, Any]] = []
        for question in questions:
            if isinstance(question, Study):
                if question.method != "statistics":
                    raise Misuse(
                        f"{question.name!r} is of the method {question.method!r}, with releases of its own.",
                        "Ask questions of the method statistics together, and run the others by themselves.",
                    )
                asked += [dict(query) for query in question.queries]
            else:
                asked.append(question if not isinstance(question, Mapping) else dict(question))
        return self.study("statistics", {"query": tuple(asked)} if asked else {}, **options)

    # -- regression --------------------------------------------------------------------------------------------------------

    def linear(
        self, outcome: str, over: Names = (), *, where: str = "", errors: Errors | None = None, **options: Unpack[Options]
    ) -> Study:
        """Linear regression of a number, or of an event, whose coefficients are differences of risk.

        Args:
            outcome: a number, a condition, or a formula such as ``"stay ~ age + C(sex)"`` in place of ``over``
                (docs/papers.md, "A formula").
            over: terms.
            where: which records.
            errors: as of :meth:`cox`, or ``robust``, the default of an event.
            options: of the study.
        """
        return self._regress("linear", outcome, over, options, errors, where=where)

    def logistic(
        self,
        outcome: str,
        over: Names = (),
        *,
        per: Mapping[str, float] | None = None,
        where: str = "",
        errors: Errors | None = None,
        **options: Unpack[Options],
    ) -> Study:
        """Logistic regression of an event, a condition such as ``"died = 'yes'"``: odds ratios; ``per`` and ``errors`` as of
        :meth:`cox`, or ``robust``. A formula, ``"died ~ age + C(sex) * treated"``, takes the place of outcome and terms."""
        return self._regress("logistic", outcome, over, options, errors, per=per, where=where)

    def poisson(
        self,
        outcome: str,
        over: Names = (),
        *,
        exposure: str = "",
        offset: str = "",
        per: Mapping[str, float] | None = None,
        most: float | None = None,
        where: str = "",
        errors: Errors | None = None,
        **options: Unpack[Options],
    ) -> Study:
        """Poisson regression of counts: rate ratios; ``most`` is the largest mean of a record; ``errors`` are ``robust`` by
        default; others as of :meth:`cox`, and a formula as of :meth:`logistic`.

        ``exposure`` is the column of the time, or the number, that a record's count is of; or ``offset`` its logarithm.
        """
        more: dict[str, Any] = {"per": per, "most": most, "where": where, "offset": offset}
        if exposure:
            derive = options.get("derive", {})
            found = offset_parameters(exposure, self.schema, derive)
            more["offset"], options["derive"] = found["offset"], {**derive, **found["derive"]}
        return self._regress("poisson", outcome, over, options, errors, **more)

    def cox(
        self,
        time: str,
        over: Names = (),
        *,
        event: str,
        censored: Names,
        edges: Any = (),
        entry: str = "",
        strata: str = "",
        per: Mapping[str, float] | None = None,
        where: str = "",
        errors: Errors | None = None,
        **options: Unpack[Options],
    ) -> Study:
        """Cox regression of the time to an event: hazard ratios.

        Args:
            time: column of the times; its upper bound is the horizon; or a formula, ``"time ~ age + C(arm)"``.
            over: terms; a category's first level is the reference.
            event: column that tells how each ended.
            censored: its categories that do not count as the event.
            edges: of the intervals in which ends are counted first; 40 equal ones by default.
            entry: column of the time, in the same unit, from which on a record was followed.
            strata: category whose levels have baselines of their own.
            per: for a change of how many units of a term its ratio is given, such as ``{"age": 10}``.
            where: which records.
            errors: of a ``model`` whose records are independent; or ``clustered`` by site, where effects may differ between
                sites, for which each site discloses its own noised score: three sites or more.
            options: of the study.
        """
        more = {"event": event, "censored": as_list(censored), "edges": edges, "per": per, "where": where}
        more |= {"entry": entry, "strata": strata}
        return self._regress("cox", time, over, options, errors, **more)

    # -- models ------------------------------------------------------------------------------------------------------------

    def train(self, method: str = "fedsgd", parameters: Mapping[str, Any] | None = None, **options: Unpack[Options]) -> Study:
        """A classifier of the schema's label: trained (``fedsgd``, ``fedavg``) or made of a few sums (``fedcgs``, ...).

        With ``outcome`` among the parameters of ``fedsgd``, ``fedavg`` and ``gbdt`` a model of a number, a count or a time.

        Args:
            method: any that makes a model; docs/methods.md compares them.
            parameters: of the method.
            options: of the study.

        Raises:
            ConfigurationError: the schema has no label, and no outcome is named.
        """
        if self.schema.label is None and "outcome" not in (parameters or {}):
            raise ConfigurationError(
                "The schema has no label, and a classifier learns one.",
                "Add a [label] to it, or name an outcome in the parameters; to explain one use linear, poisson or cox.",
            )
        return self.study(method, parameters, **options)

    def components(self, width: int | None = None, **options: Unpack[Options]) -> Study:
        """Principal components, ``width`` of them, which later studies can use as features."""
        return self.study("pca", {} if width is None else {"width": width}, **options)

    def evaluate(self, model: StudyResult, **options: Unpack[Options]) -> Study:
        """How good a released model is on the sites' records."""
        return self.study(EVALUATION, {"result": str(model.directory.resolve())}, **options)

    # -- any ---------------------------------------------------------------------------------------------------------------

    def study(self, method: str, parameters: Mapping[str, Any] | None = None, **options: Unpack[Options]) -> Study:
        """A study of any method, by its parameters (docs/methods.md).

        Raises:
            ConfigurationError: an option is unknown, or the parameters are not a mapping. What else is wrong, planning or
                running the study says.
        """
        if not isinstance(parameters, Mapping | None):
            told = f"parameters: a {type(parameters).__name__} names nothing."
            raise ConfigurationError(told, "Give a dict of names and values, as docs/methods.md lists them.")
        name, given = _named(method, parameters), merged(self.options, options)
        return Study(self.federation, Question(method, parameters or {}, self.name, self.schema, given, name))

    def load(self, path: str | Path) -> Study:
        """The study of a study.toml, whose own schema, dataset and options hold.

        Raises:
            ConfigurationError: it cannot be read or is invalid.
        """
        return Study(self.federation, load_study_request(Path(path)))

    def _ask(self, kind: str, options: Options, **keys: Any) -> Study:
        query: dict[str, Any] = {"kind": kind}
        for key, value in keys.items():
            listed = as_list(value) if key in ("over", "by", "censored") else value
            if listed not in ("", [], ()):
                query[key] = listed
        return self.study("statistics", {"query": (query,)}, **options)

    def _regress(self, family: str, outcome: str, over: Names, options: Options, errors: Errors | None, **keys: Any) -> Study:
        stated = {key: value for key, value in keys.items() if value not in (None, "", (), [])}
        stated |= {} if errors is None else {"errors": errors}
        asked: dict[str, Any] = {"outcome": outcome, "over": as_list(over)}
        if has_formula(outcome):
            if asked["over"]:
                raise Misuse(f"{outcome!r} is a formula, and `over` names terms as well.", "State them in one of the two.")
            found = formula_parameters(family, outcome, self.schema, merged(self.options, options).get("derive", {}))
            asked = {name: found[name] for name in ("outcome", "over")}
            stated |= {"reference": found["reference"]} if found["reference"] else {}
            options = merged(options, {"derive": found["derive"]} if found["derive"] else {})
            options.setdefault("study_name", f"{family}-{outcome.partition('~')[0].strip()}")
        return self.study("regression", {"family": family, **asked, **stated}, **options)

    def __repr__(self) -> str:
        return f"<Dataset {self.name!r} of {self.federation.name}: {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        from veilsum.exports import table_html

        rows = [
            {"column": item.name, "kind": item.kind, "values": _values(item), "label": item.label}
            for item in self.schema.columns
        ]
        if (label := self.schema.label) is not None:
            classes = [item.name for item in label.classes]
            rows.append({"column": label.column, "kind": "class", "values": plain_text(classes), "label": label.label})
        about = {"dataset": self.name, "coordinator": self.federation.name, "options": self.options or "none"}
        return fields_html(about) + table_html(rows)


def _values(column: Column) -> str:
    """What a column may hold: its categories, or its bounds with their unit."""
    if isinstance(column, CategoryColumn):
        return plain_text(column.categories)
    since = f" since {column.origin}" if isinstance(column, DateColumn) else ""
    return f"{column.low:g} to {column.high:g} {column.unit}".rstrip() + since


def _named(method: str, parameters: Mapping[str, Any] | None) -> str:
    """What a study is called that nobody named: its method, or what it asks."""
    given = parameters or {}
    if method == "regression":
        return f"{given.get('family', method)}-{given.get('outcome', '')}"
    queries = given.get("query", ())
    if method == "statistics" and isinstance(queries, Sequence) and len(queries) == 1 and isinstance(queries[0], Mapping):
        return "-".join([str(queries[0].get("kind", method)), *map(str, as_list(queries[0].get("over", ())))])
    return method
