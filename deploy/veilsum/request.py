"""What an analyst writes: a study.toml, validated and with the schema that it points to. Nothing is filled in here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from veilsum.typical import Guess
from veilsum_node.config import read_toml, validate
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse, VeilsumError, told_as
from veilsum_node.fields import Frozen, Name, Words
from veilsum_privacy.accounting.accountant import SLACK_SHARE
from veilsum_privacy.study.encoder import Program, Projection, RandomFeatures
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.schema_file import load_schema, with_groups
from veilsum_privacy.study.study import NoiseKind, Unit

LARGEST_EPSILON = 1e4

EVALUATION = "federated-evaluation"
"""The method whose parameter ``result`` names a directory, as ``[encoder]`` does."""


class PrivacyRequest(Frozen):
    """The ``[privacy]`` table of a study.toml; ``noise = "none"`` takes neither epsilon nor error.

    Attributes:
        epsilon: what the study may cost.
        error: in its place, the largest 95% half-width of the method's main quantities, as a share of their expected size, by
            a rehearsal at ``expected_records``; epsilon is then the smallest that reaches it.
        max_epsilon: with an error, the largest epsilon that it may cost.
        accounting: the rule by which the study is priced: ``gaussian``, or ``rdp`` for sites that do not know the other yet.
        slack: by the rule ``gaussian``, the share of delta with which sampled steps may be taken to reveal a record, for all
            of the study; less of it takes more noise. A budget bears a tenth in all.
        unit: whose presence the guarantee hides, a record's or a subject's with all its records; by default the subject's
            where the schema says ``joined``, else the record's.
    """

    epsilon: float | None = Field(default=None, gt=0, le=LARGEST_EPSILON)
    error: float | None = Field(default=None, gt=0, le=1)
    max_epsilon: float | None = Field(default=None, gt=0, le=LARGEST_EPSILON)
    delta: float = Field(default=1e-5, gt=0, lt=0.5)
    noise: NoiseKind = "distributed"
    assumed_colluders: int = Field(default=1, ge=1, le=1024)
    min_cohort: int | None = Field(default=None, ge=2, le=1024)
    cohort_difference: Literal["strict", "allowed"] | None = None
    unit: Unit | None = None
    accounting: Literal["gaussian", "rdp"] = "gaussian"
    slack: float = Field(default=0.005, gt=0, le=SLACK_SHARE)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if [self.epsilon is not None, self.error is not None, self.noise == "none"].count(True) != 1:
            raise ValueError('state epsilon or error or noise = "none", and only one of them')
        if self.max_epsilon is not None and self.error is None:
            raise ValueError("max_epsilon bounds what an error may cost; state it with error")
        if self.noise == "none" and self.cohort_difference == "allowed":
            raise ValueError('a study without noise needs cohort_difference = "strict"')
        return self


class ReleasedProjection(Frozen):
    """The ``[encoder]`` table that names the projection which an earlier study released.

    Attributes:
        result: directory of that study's result, relative to the study's file.
    """

    kind: Literal["released"] = "released"
    result: str = Field(min_length=1)


def _encoder_form(value: Any) -> str:
    """Which of the four an ``[encoder]`` table is meant to be, so that its faults are named as that one's."""
    if not isinstance(value, Mapping):
        return str(getattr(value, "kind", "released"))
    kind = value.get("kind", "program" if {"format", "inputs"} & value.keys() else "released")
    return kind if kind in ("projection", "random-features", "released") else "program"


class StudyRequest(Frozen):
    """An analyst's study.toml.

    Attributes:
        name: of the study.
        method: registered method.
        dataset: the dataset's name as sites offer it.
        parameters: the method's parameters.
        privacy: what it may cost; ``min_cohort`` is by default all participants.
        schema_file: key ``schema``: path of the dataset's schema, relative to the study's file.
        data: key ``data``: the schema itself, in place of ``schema``.
        encoder: what makes features of the dataset's columns; None for the columns themselves.
        participants: who shall take part; by default everyone in the federation.
        query: of the method "statistics", what is asked (:mod:`veilsum_coordinator.parts.query_requests`).
        derive: of that method, columns made of others, by name.
        expires_hours: how long the study may run, in hours.
        expected_records: records that a site is expected to have, for planning and for ``privacy.error``; by default, and at
            most, the schema's ``max_records``.
        expected: what is publicly guessed of columns, for the plan and for ``privacy.error`` alone (:mod:`veilsum.typical`).
            It is not in the study that is signed.
        purpose: what the study is for. This and the next three are signed and shown to the sites, which may demand them.
        reference: by which it can be found elsewhere: the number of an ethics vote, of a contract, of a project.
        legal_basis: on which the data are used.
        contact: whom a site asks about it.
    """

    model_config = ConfigDict(populate_by_name=True)

    name: Name
    method: str
    dataset: Name
    privacy: PrivacyRequest
    parameters: dict[str, Any] = Field(default_factory=dict)
    schema_file: str | None = Field(default=None, alias="schema")
    data: DatasetSchema | None = None
    encoder: (
        Annotated[
            Annotated[Projection, Tag("projection")]
            | Annotated[Program, Tag("program")]
            | Annotated[RandomFeatures, Tag("random-features")]
            | Annotated[ReleasedProjection, Tag("released")],
            Discriminator(_encoder_form),
        ]
        | None
    ) = None
    participants: tuple[Name, ...] = ()
    query: tuple[dict[str, Any], ...] = ()
    derive: dict[str, dict[str, Any]] = Field(default_factory=dict)
    expires_hours: int = Field(default=24, ge=1, le=24 * 366)
    expected_records: int | None = Field(default=None, ge=1)
    expected: dict[str, Guess] = Field(default_factory=dict)
    purpose: Words | None = None
    reference: Words | None = None
    legal_basis: Words | None = None
    contact: Words | None = None

    @model_validator(mode="after")
    def _one_schema(self) -> Self:
        if (self.schema_file is None) == (self.data is None):
            raise ValueError('state either schema = "file.toml" or a [data] table')
        return self

    def unit(self, schema: DatasetSchema) -> Unit:
        """The unit whose presence the study hides.

        Raises:
            ConfigurationError: one row's, of a person who may have several.
        """
        if schema.joined and self.privacy.unit == "record":
            raise ConfigurationError(
                f'study {self.name!r}: unit = "record" hides one row; by the schema (joined = true) a person may have more.',
                'Leave `unit` out or state "subject". If nobody has two rows, leave `joined` out of the schema.',
            )
        return self.privacy.unit or ("subject" if schema.joined else "record")

    @property
    def all_parameters(self) -> dict[str, Any]:
        """The method's parameters, with what stands in tables of its own."""
        tables = {"query": self.query, "derive": self.derive}
        return self.parameters | {name: value for name, value in tables.items() if value}


def load_study_request(path: Path) -> StudyRequest:
    """Read a study.toml and the schema it points to; the result carries the schema in ``data``.

    Raises:
        ConfigurationError: a file cannot be read or is invalid; the message names file and keys.
    """
    content = with_data(read_toml(path), path.parent, str(path))
    request = with_projection(validate(content, StudyRequest, source=str(path)), path.parent)
    if request.schema_file is not None:
        data = load_schema(path.parent / request.schema_file)
        request = request.model_copy(update={"schema_file": None, "data": data})
    return with_model(request, path.parent)


def with_data(content: Mapping[str, Any], base: Path, source: str) -> dict[str, Any]:
    """A study's content as parsed, its table ``data`` with the groups of codes that lie in files beside it.

    Raises:
        ConfigurationError: as :func:`veilsum_privacy.study.schema_file.with_groups`.
    """
    data = content.get("data")
    return {**content, "data": with_groups(data, base, source)} if isinstance(data, Mapping) else dict(content)


def with_projection(request: StudyRequest, base: Path) -> StudyRequest:
    """The request with the digest of the projection in place of the result that released it.

    Args:
        base: directory that the result's path is relative to.

    Raises:
        ConfigurationError: the result does not exist, or holds no projection.
    """
    if not isinstance(request.encoder, ReleasedProjection):
        return request
    from veilsum_coordinator.results.released_models import result_projection
    from veilsum_privacy.results.result import load_result

    with told_as(ConfigurationError, HostileInput, what=f"study {request.name!r}, [encoder]"):
        projection, _ = result_projection(load_result(base / request.encoder.result))
    return request.model_copy(update={"encoder": projection})


_SAME = "Use the schema of the study that released it."


def with_model(request: StudyRequest, base: Path) -> StudyRequest:
    """The request with the digest of the model that it evaluates, and that model's encoder, in place of the result.

    Of a regression its prediction, a formula, takes the result's place.

    Args:
        request: with its schema in ``data``.
        base: directory that the result's path is relative to.

    Raises:
        ConfigurationError: the result does not exist, holds no model, or it reads other columns than the study.
    """
    if request.method != EVALUATION or "result" not in request.parameters:
        return request
    from veilsum_coordinator.results.released_models import result_model, result_prediction, result_predictor
    from veilsum_privacy.results.result import load_result

    what = f"study {request.name!r}, parameters.result"
    given = {key: value for key, value in request.parameters.items() if key != "result"}
    with told_as(ConfigurationError, VeilsumError, what=what):
        result = load_result(base / str(request.parameters["result"]))
        if (prediction := result_prediction(result)) is not None:
            return request.model_copy(update={"parameters": {**given, "prediction": prediction}})
        if (predictor := result_predictor(result)) is not None:
            if request.data is not None and not predictor.fits(request.data):
                raise Misuse("the model or its outcome has other columns or bounds than the schema.", _SAME)
            told = predictor.prediction.model_dump(mode="json", exclude_defaults=True)
            return request.model_copy(update={"parameters": {**given, "prediction": told}})
        released = result_model(result)
    if request.data is not None and request.data.columns != released.columns:
        raise ConfigurationError(f"{what}: the model reads other columns than the schema has.", _SAME)
    if request.encoder not in (None, released.encoder):
        raise ConfigurationError(
            f"{what}: the model's features are made by another encoder.", "Leave out [encoder]: the result names it."
        )
    if taken := sorted({"model", "sha256", "classes"} & given.keys()):
        raise ConfigurationError(f"{what}: says {', '.join(taken)} itself.", f"Leave out {', '.join(taken)}.")
    told = {
        "model": released.model.model_dump(mode="json"),
        "sha256": released.sha256,
        "classes": list(released.classes),
        "missing": given.get("missing", released.missing),
    }
    return request.model_copy(update={"parameters": {**given, **told}, "encoder": released.encoder})
