"""What the computation has to know of a task, as data: whoever traces it says so, and the kernel holds it to the declaration.

Nothing here can make a release cost more than is booked. The price follows from the signed declaration alone; a row or a
product that is longer than the declared grid is pulled in whatever is said of it (:mod:`veilsum_privacy.mechanism.rows.sums`,
:mod:`veilsum_privacy.mechanism.factors`). What the declaration and the kind have to do with each other is insisted on by
:func:`check_terms`, which believes no task: whoever says that a task reads no record has it computed without one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from veilsum_node.errors import HostileInput
from veilsum_node.fields import LARGEST, SMALLEST
from veilsum_privacy.mechanism.clipping import MAX_GRID
from veilsum_privacy.mechanism.factors import Entries, Gram, Outer, Products, Term
from veilsum_privacy.mechanism.noise import LARGEST_CENTRE
from veilsum_privacy.mechanism.persons import Persons, Reduction
from veilsum_privacy.mechanism.rows.graph import RowGraph
from veilsum_privacy.study.study import Disclosure, Study, TaskDeclaration

TaskKind = Literal["rows", "factors", "derived", "training"]

LONGEST_NAME, MOST_NAMES = 256, 2**16
"""Characters of an array's name, and names of arrays."""

MOST_SIZE = 2**40
"""Most values of a vector that terms may name; what a site computes is bounded by its policy."""


@dataclass(frozen=True)
class TaskTerms:
    """A task, as far as the kernel goes.

    Attributes:
        kind: what is computed: rows, factors, what derives from a kept vector, or training.
        size: values of its vector at one site.
        clip: what the norm of a row, or of a record's products, becomes a grid for; of kinds that meet no record, the bound
            on each value.
        step_clip: of training, the same for a step; 0 of others.
        products: of factors; None of others.
        persons: how a subject's records count; None where every record does.
        mapped: whether records are mapped before the task sees them.
        weighted: whether the vector is multiplied by the site's public weight.
        steers_sites: whether what is broadcast for one site acts on its records.
        site_arrays, single_arrays: names of broadcast arrays with a row for each site, and of those that may be in single
            precision.
        disclosures: that the task allows.
        weights: SHA-256 of the file of its model's frozen weights, which whoever computes on records needs; empty for none.
    """

    kind: TaskKind
    size: int
    clip: float
    step_clip: float = 0.0
    products: Products | None = None
    persons: Persons | None = None
    mapped: bool = False
    weighted: bool = False
    steers_sites: bool = False
    site_arrays: tuple[str, ...] = ()
    single_arrays: tuple[str, ...] = ()
    disclosures: tuple[Disclosure, ...] = ("joint", "per-site")
    weights: str = ""

    def largest(self, declared: TaskDeclaration, study: Study) -> int:
        """Largest absolute value of the vector at one site before noise, in grid units: of the declaration alone."""
        match self.kind:
            case "derived":
                return declared.grid
            case "training":
                return declared.resolution
            case _:
                return declared.grid * study.data.max_records

    @staticmethod
    def from_json(value: Any) -> TaskTerms:
        """Read terms that somebody else said; all that they hold is of its type and within its bounds.

        Raises:
            HostileInput: it is not.
        """
        try:
            kind, persons, flags = value["kind"], value["persons"], value["flags"]
            mapped, weighted, steers = flags
            _want(kind in get_args(TaskKind) and all(isinstance(flag, bool) for flag in flags))
            disclosures = tuple(value["disclosures"])
            _want(set(disclosures) <= set(get_args(Disclosure)))
            _want(re.fullmatch(r"([0-9a-f]{64})?", value["weights"]) is not None)
            products = None if value["products"] is None else products_from_json(value["products"])
            return TaskTerms(
                kind,
                _whole(value["size"], 1, MOST_SIZE),
                _real(value["clip"]),
                0.0 if value["step_clip"] == 0.0 else _real(value["step_clip"]),
                products,
                None if persons is None else _persons(persons),
                mapped,
                weighted,
                steers,
                _names(value["site_arrays"]),
                _names(value["single_arrays"]),
                disclosures,
                value["weights"],
            )
        except (TypeError, ValueError, KeyError) as error:
            raise HostileInput("A task's terms are not what they have to be.") from error


def check_terms(what: str, terms: TaskTerms, declared: TaskDeclaration, study: Study) -> None:
    """Insist that a declaration suits the kind of its task, by all that the price and the bound rest on.

    Args:
        what: the task, as the beginning of a sentence.
        terms: as the task, or somebody else, says them.
        declared, study: as they were signed.

    Raises:
        HostileInput: it does not.
    """
    noisy = study.privacy.noise != "none"
    for broken, rule in (*_of_all(terms, declared, noisy=noisy), *_of_kind(terms, declared, study, noisy=noisy)):
        if broken:
            raise HostileInput(f"{what}{rule}.")
    persons = terms.persons
    if persons is not None and study.privacy.unit != "subject" and (persons.person is not None or persons.at_most):
        raise HostileInput(
            f"{what} counts persons; one record changes more than its share of a person.",
            'State unit = "subject" under [privacy].',
        )


_Rules = Iterable[tuple[bool, str]]


def _of_all(terms: TaskTerms, declared: TaskDeclaration, *, noisy: bool) -> _Rules:
    """What holds of tasks of every kind: whether it is broken, and how it reads."""
    reads = terms.kind != "derived"
    return (
        (declared.disclosure not in terms.disclosures, f" cannot be disclosed {declared.disclosure}"),
        (reads and noisy and declared.variance == 0, " reads records and must have noise"),
        (reads and declared.grid > MAX_GRID, " has a grid above 2^26"),
        (
            terms.kind != "training" and bool(declared.local_steps or declared.resolution),
            " has steps or a resolution; these are of tasks that train at the site",
        ),
        (
            declared.unrounded and not (noisy and terms.kind == "factors"),
            ": `unrounded` needs a task with one noised vector per site",
        ),
        (
            terms.weighted and declared.disclosure != "joint",
            " cannot be weighted: only a joint sum of one vector per site can",
        ),
    )


def _of_kind(terms: TaskTerms, declared: TaskDeclaration, study: Study, *, noisy: bool) -> _Rules:
    match terms.kind:
        case "derived":
            return (
                (
                    declared.source is None or declared.variance != 0 or declared.keep,
                    " computes from what a site kept; it needs a source and has no noise of its own",
                ),
                (declared.sampling_rate < 1, " reads no record that could be sampled"),
            )
        case "training":
            return (
                (declared.keep, " cannot be kept: only a sum over records can"),
                (
                    (declared.local_steps > 0) != noisy or declared.resolution == 0,
                    " trains at the site: it has a resolution, and steps exactly if the study has noise",
                ),
                (noisy and terms.step_clip <= 0.0, " trains with noise, and clips its steps"),
            )
        case "factors":
            products, largest = terms.products, terms.largest(declared, study)
            return (
                (declared.keep, " cannot be kept: its sum is rounded"),
                (
                    products is None or products.size != terms.size,
                    " does not make as many values of its factors as it declares",
                ),
                (
                    noisy and declared.unrounded and largest > LARGEST_CENTRE,
                    " reaches beyond 2^30 grid units, which an unrounded vector may not",
                ),
            )
        case _:
            return ((terms.products is not None, " adds rows, and multiplies nothing"),)


def check_graph(graph: RowGraph, *, size: int, width: int, labelled: bool) -> None:
    """Insist that a graph that somebody else traced gives so many values, and names columns and a class that records have.

    Raises:
        HostileInput: it does not.
    """
    if graph.root.spec.size != size or len(graph.root.spec.shape) != 1:
        raise HostileInput(f"A graph gives {graph.root.spec.size} values of a record; its task declares {size}.")
    for step in graph.steps:
        columns = step.node.options.get("columns")
        named = columns if isinstance(columns, tuple) else ()
        if step.node.primitive in ("features", "present") and max(named, default=0) >= width:
            raise HostileInput(f"A graph names a column beyond the {width} that a record has.")
        if step.node.primitive == "label" and not labelled:
            raise HostileInput("A graph names a class, and records have none.")


def opaque_names(graph: RowGraph) -> tuple[str, ...]:
    """Names of the opaque maps that a graph takes, each once."""
    found = (str(step.node.options["name"]) for step in graph.steps if step.node.primitive == "opaque")
    return tuple(dict.fromkeys(found))


# -- products -----------------------------------------------------------------------------------------------------------------


def products_from_json(value: Any) -> Products:
    """Read products that somebody else said.

    Raises:
        HostileInput: they are none.
    """
    try:
        terms, clip, weighted = value
        _want(isinstance(weighted, bool) and 0 < len(terms) <= MOST_NAMES)
        return Products(tuple(map(_term, terms)), _real(clip), weighted)
    except (TypeError, ValueError, KeyError) as error:
        raise HostileInput("Products of factors are not what they have to be.") from error


def _term(value: Any) -> Term:
    match value:
        case ["outer", left, right, bool() as bias]:
            return Outer(_whole(left, 1, MAX_GRID), _whole(right, 1, MAX_GRID), bias)
        case ["gram", given, weight]:
            return Gram(_whole(given, 1, MAX_GRID), _real(weight))
        case ["entries", given, apart]:
            return Entries(_whole(given, 1, MAX_GRID), 0.0 if apart == 0.0 else _real(apart))
    raise ValueError(value)


# -- plain values -------------------------------------------------------------------------------------------------------------


def _persons(value: Any) -> Persons:
    person, at_most, categories = value
    _want(person is None or person in get_args(Reduction))
    places = [(_whole(start, 0, MAX_GRID), _whole(stop, 0, MAX_GRID)) for start, stop in categories]
    _want(all(start < stop for start, stop in places) and len(places) <= MOST_NAMES)
    return Persons(person, _whole(at_most, 0, MAX_GRID), tuple(slice(*place) for place in places))


def _names(value: Any) -> tuple[str, ...]:
    names = tuple(value)
    _want(len(names) <= MOST_NAMES and all(isinstance(name, str) and len(name) <= LONGEST_NAME for name in names))
    return names


def _whole(value: Any, least: int, most: int) -> int:
    _want(isinstance(value, int) and not isinstance(value, bool) and least <= value <= most)
    return int(value)


def _real(value: Any) -> float:
    _want(isinstance(value, float) and math.isfinite(value) and SMALLEST <= value <= LARGEST)
    return float(value)


def _want(holds: bool) -> None:
    if not holds:
        raise ValueError
