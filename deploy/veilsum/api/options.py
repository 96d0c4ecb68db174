"""What every question may state beside itself: what it may cost, whose presence it hides, who takes part."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict

import numpy as np

from veilsum.request import StudyRequest, with_model, with_projection
from veilsum_node.config import did_you_mean, validate
from veilsum_node.errors import ConfigurationError
from veilsum_privacy.study.schema import DatasetSchema

Names = str | int | Sequence[str | int]


class Stored(Protocol):
    """A result on disk."""

    @property
    def directory(self) -> Path:
        """Directory of the study's files."""


class Options(TypedDict, total=False):
    """Keys of a study that any question may state; state ``epsilon``, or ``error``, or ``noise="none"``.

    Attributes:
        epsilon: what the study may cost each site.
        error: in its place, the largest 95% half-width of the main figures, as a share of their expected size.
        max_epsilon: with ``error``, the most that it may cost.
        delta: of the guarantee; 1e-5 by default.
        noise: ``"distributed"`` (the default), ``"local"``, or ``"none"`` for exact sums without any guarantee.
        assumed_colluders: sites that may collude with the coordinator; 1 by default.
        min_cohort: fewest sites of a sum; all by default.
        cohort_difference: whether cohorts of the study may differ.
        accounting: the rule by which studies are priced, ``"gaussian"`` or ``"rdp"``; see docs/ledger.md.
        slack: the share of delta that sampled steps may be taken to reveal a record with; 0.005 by default.
        unit: whose presence is hidden: a ``"record"``'s, a ``"subject"``'s, or that of all records of a ``"site"``; by
            default the subject's where the schema says that a person may have several records, else a record's.
        person: with subjects, how a person's records become one: ``"first"``, ``"last"``, ``"max"`` or ``"mean"``.
        at_most: in its place, how many records of a person count.
        derive: columns made of others, by name (docs/statistics.md, "Queries").
        smallest_cell: of statistics, fewest records of a figure that is printed.
        study_name: by default what it asks.
        participants: the sites that shall take part; all connected ones by default.
        expected_records: records that a site is expected to have, for plans and ``error``.
        expected: public guesses for plans and ``error`` alone, such as ``{"died": 0.09, "age": [63, 18]}``
            (docs/scientist.md, "3. Plan").
        expires_hours: how long the study may run.
        purpose: what the study is for, in a sentence. This and the next three are signed and shown to the sites.
        reference: number of an ethics vote, a contract or a project.
        legal_basis: on which the data are used.
        contact: whom a site asks about the study.
        encoder: features in place of columns: the result of :meth:`~veilsum.Dataset.components`, or the ``[encoder]`` table of
            a study.
    """

    epsilon: float
    error: float
    max_epsilon: float
    delta: float
    noise: Literal["distributed", "local", "none"]
    assumed_colluders: int
    min_cohort: int
    cohort_difference: Literal["strict", "allowed"]
    accounting: Literal["gaussian", "rdp"]
    slack: float
    unit: Literal["record", "subject", "site"]
    person: Literal["first", "last", "max", "mean"]
    at_most: int
    derive: Mapping[str, Mapping[str, Any]]
    smallest_cell: int
    study_name: str
    participants: Sequence[str]
    expected_records: int
    expected: Mapping[str, float | Sequence[float] | Mapping[str, float]]
    expires_hours: int
    purpose: str
    reference: str
    legal_basis: str
    contact: str
    encoder: Mapping[str, Any] | Stored


_PRIVACY = (
    "epsilon", "error", "max_epsilon", "delta", "noise", "assumed_colluders", "min_cohort", "cohort_difference", "unit",
    "accounting", "slack",
)  # fmt: skip
_PARAMETERS = ("person", "at_most", "derive", "smallest_cell")
_DEMANDS = ("epsilon", "error", "noise")
"""One of them says what a study may cost, or that it has no guarantee."""


def merged(defaults: Options, own: Options) -> Options:
    """Options of one question over those of its dataset; a demand for privacy takes the place of another one.

    Raises:
        ConfigurationError: an option that there is not.
    """
    known = Options.__annotations__
    for name in (*defaults, *own):
        if name not in known:
            raise ConfigurationError(f"No option is called {name!r}.", did_you_mean(name, known))
    kept: dict[str, Any] = dict(defaults)
    if own.get("noise") == "none" or "epsilon" in own or "error" in own:
        for name in ("epsilon", "error", "max_epsilon"):
            kept.pop(name, None)
        if kept.get("noise") == "none" or own.get("noise") == "none":
            kept.pop("noise", None)
    return Options(**{**kept, **own})  # type: ignore[typeddict-item]


@dataclass(frozen=True)
class Question:
    """What a study asks, before it is known what it may cost: several of them may be asked together.

    Attributes:
        method: registered method.
        parameters: of the method, with ``query`` where it is ``statistics``.
        dataset: the dataset's name.
        schema: of the dataset.
        options: what the study states beside it.
        name: of the study, unless the options have one.
    """

    method: str
    parameters: Mapping[str, Any]
    dataset: str
    schema: DatasetSchema
    options: Options
    name: str

    @property
    def study_name(self) -> str:
        """Name of the study."""
        return study_name(str(self.options.get("study_name", self.name)))

    def request(self) -> StudyRequest:
        """The study as its study.toml would say it.

        Raises:
            ConfigurationError: it does not say what it may cost, or something is unknown or out of range.
        """
        given: dict[str, Any] = {key: value for key, value in self.options.items() if key != "study_name"}
        if not any(key in given for key in _DEMANDS):
            raise ConfigurationError(
                "The study does not say what it may cost.",
                'State epsilon=1.0, or error=0.1 for a precision; or noise="none" for exact sums without any guarantee.',
            )
        of_method = {key: given.pop(key) for key in _PARAMETERS if key in given}
        privacy = {key: given.pop(key) for key in _PRIVACY if key in given}
        content = {
            "name": self.study_name,
            "method": self.method,
            "dataset": self.dataset,
            "data": self.schema,
            "privacy": privacy,
            "parameters": {**self.parameters, **of_method},
            **given,
        }
        encoder = content.get("encoder")
        if encoder is not None and not isinstance(encoder, Mapping):
            if not hasattr(encoder, "directory"):
                raise ConfigurationError("encoder: is neither a result nor a table.", "Give what components() gave.")
            content["encoder"] = {"result": str(encoder.directory.resolve())}
        if "participants" in content:
            content["participants"] = tuple(as_list(content["participants"]))
        asked = validate(content, StudyRequest, source=f"study {self.study_name!r}")
        return with_model(with_projection(asked, Path()), Path())


def study_name(text: str) -> str:
    """A study's name made of a text; ``study`` where nothing is left of it."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower())[:64].strip("-._") or "study"


def as_list(names: Names) -> list[str]:
    """One name, or several; a whole number is a category that is written so, as events often are.

    Raises:
        ConfigurationError: neither.
    """
    several = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    return [_as_name(item) for item in several]


def _as_name(item: object) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, bool | np.bool_) or not isinstance(item, int | np.integer):
        raise ConfigurationError(f"{item!r} is not a name.", "Give a name as text, or several in a list.")
    return str(item)
