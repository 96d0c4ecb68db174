"""What a simulation is asked for and what comes of it: a study as a draft, its sites, its runs. This module runs nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from veilsum.compile import StudyRequest, draft_study
from veilsum.request import EVALUATION, ReleasedProjection, with_data, with_model, with_projection
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.results.released_models import released_arrays, result_projection
from veilsum_deploy.collections import Collection
from veilsum_deploy.simulation.deal import Setting, sites_by_domain
from veilsum_deploy.simulation.scores import Encode, Scores
from veilsum_node.config import read_toml, validate
from veilsum_node.errors import Misuse
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.data.encoders import load_encoder
from veilsum_participant.data.quality import ColumnCells
from veilsum_participant.settings.encoder_files import file_digest
from veilsum_privacy.mechanism.exact import ExactAffine
from veilsum_privacy.results.result import Result, load_result
from veilsum_privacy.study.encoder import Program as FrozenProgram
from veilsum_privacy.study.encoder import Projection
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.schema_file import load_schema
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.feature_maps import ENCODER_MATRIX, ENCODER_OFFSET
from veilsum_privacy.training.weights import offer

Program = Callable[[Floats], Floats]


@dataclass(frozen=True)
class SimulationDraft:
    """A study as asked for, ready to be compiled for any sites.

    Attributes:
        request: with its schema in ``data`` and a released projection by its digest.
        projection: the result that released the study's projection; None without one.
        program: the study's frozen program; None without one.
        model: the result that released the model which the study evaluates; None where it evaluates none.
        weights: file of its model's frozen weights; None without any.
    """

    request: StudyRequest
    projection: Result | None = None
    program: Program | None = None
    model: Result | None = None
    weights: Path | None = None

    @property
    def schema(self) -> DatasetSchema:
        """The study's schema.

        Raises:
            Misuse: it has none.
        """
        if self.request.data is None:
            raise Misuse("The study has no schema.")
        return self.request.data

    @property
    def broadcast(self) -> dict[str, Floats]:
        """The arrays of the projection and of a model to evaluate, which every round broadcasts."""
        model = {} if self.model is None else released_arrays(self.model)[1]
        return {**self._projection, **model}

    @property
    def _projection(self) -> dict[str, Floats]:
        return {} if self.projection is None else result_projection(self.projection)[1]

    @property
    def encode(self) -> Encode:
        """Features of records as the study's tasks see them before any alignment."""
        arrays, program = self._projection, self.program
        if not arrays and program is None:
            return lambda records: records

        def encode(records: Records) -> Records:
            x = np.where(records.present, records.features, 0.0)
            mapped = ExactAffine(arrays[ENCODER_MATRIX], arrays[ENCODER_OFFSET])(x) if program is None else program(x)
            whole = np.ones_like(mapped, dtype=np.bool_)
            whole[~(records.present.all(axis=1) & np.isfinite(mapped).all(axis=1))] = False
            return Records(np.where(whole, mapped, 0.0), whole, records.labels)

        return encode


@dataclass(frozen=True)
class Simulation:
    """What to simulate.

    Attributes:
        collection: the records of all sites together, in domains.
        seed: of the split and of what is held out; noise never depends on it.
        repeat: runs, each with fresh noise and keys.
        encryption: whether the whole protocol runs.
        baselines: what is computed beside the runs, where there are records to test on.
    """

    draft: SimulationDraft
    collection: Collection
    setting: Setting
    seed: int
    repeat: int = 1
    encryption: bool = True
    baselines: tuple[str, ...] = ()


@dataclass(frozen=True)
class SimulatedRun:
    """One run: its result, what the result says of its study, how long it took, and how good it is."""

    result: Result
    study: dict[str, Any]
    seconds: float
    scores: Scores


@dataclass(frozen=True)
class Beside:
    """What a baseline reaches.

    Attributes:
        scores: on the same test records.
        epsilon: what it would cost; None without noise.
        note: what to know of it, or why it has no scores.
    """

    scores: Scores
    epsilon: float | None = None
    note: str = ""


@dataclass(frozen=True)
class SimulatedRuns:
    """All runs; ``study`` is the first one's, ``sizes`` says how many records each site had, ``forced`` who was given one.

    ``beside`` is what else was computed on the same records, by the baseline's name; ``cells`` says what became of the cells
    of each column, at all sites together.
    """

    study: Study
    sizes: dict[str, int]
    runs: tuple[SimulatedRun, ...]
    forced: tuple[str, ...] = field(default=())
    beside: Mapping[str, Beside] = field(default_factory=dict)
    cells: Sequence[ColumnCells] = ()


def read_content(path: Path, encoder: Path | None) -> dict[str, Any]:
    """Parse a study.toml; ``encoder``, the folder of a result that released a projection, takes the place of its encoder.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    content = read_toml(path)
    return content if encoder is None else {**content, "encoder": {"result": str(encoder.resolve())}}


def with_stations(content: Mapping[str, Any], collection: Collection, setting: Setting) -> dict[str, Any]:
    """A study whose stations are the domains, where its method has stations, it names none, and sites are dealt by domain.

    Raises:
        Misuse: the setting does not fit the collection.
    """
    parameters = content.get("parameters", {})
    if (
        content.get("method") != "hfedatm"
        or not setting.by_domain
        or not isinstance(parameters, Mapping)
        or "stations" in parameters
    ):
        return dict(content)
    stations = {name: list(own) for name, own in sites_by_domain(collection, setting).items()}
    return {**content, "parameters": {**parameters, "stations": stations}}


def draft_of(
    content: Mapping[str, Any],
    base: Path,
    schema: DatasetSchema | None,
    *,
    source: str,
    program: Path | None = None,
    weights: Path | None = None,
) -> SimulationDraft:
    """Read the content of a study.toml; one that names no schema gets ``schema``.

    Args:
        content: as parsed; it is left as it is.
        base: directory that its paths are relative to.
        schema: of the data; None where the study must name its own.
        source: names the content in errors.
        program: file of the frozen program, for a study whose encoder is one.
        weights: file of its model's frozen weights, which this process takes from there.

    Raises:
        ConfigurationError: the content is invalid, a file cannot be read, or no schema is named.
        Misuse: the study's encoder is a program, and its file is not given.
    """
    if weights is not None:
        offer(file_digest(weights), weights)
    values = dict(content)
    if schema is not None and not {"schema", "data"} & set(values):
        values["data"] = schema
    asked = validate(with_data(values, base, source), StudyRequest, source=source)
    request = with_projection(asked, base)
    projection = load_result(base / asked.encoder.result) if isinstance(asked.encoder, ReleasedProjection) else None
    if request.schema_file is not None:
        request = request.model_copy(update={"schema_file": None, "data": load_schema(base / request.schema_file)})
    named = asked.parameters.get("result") if asked.method == EVALUATION else None
    request = with_model(request, base)
    model = None if named is None or _by_formula(request.parameters) else load_result(base / str(named))
    if projection is None and isinstance(request.encoder, Projection):  # the model's own
        projection = model
    if not isinstance(request.encoder, FrozenProgram):
        return SimulationDraft(request, projection, None, model, weights)
    if program is None:
        raise Misuse("The study's encoder is a frozen program.", "Name its file with --program.")
    return SimulationDraft(request, None, load_encoder(program, request.encoder), model, weights)


def _by_formula(parameters: Mapping[str, Any]) -> bool:
    """Whether an evaluation is of a prediction that needs no model."""
    prediction = parameters.get("prediction")
    return isinstance(prediction, Mapping) and "by" not in prediction


def compiled(draft: SimulationDraft, federation: str, names: Sequence[str], clock: Callable[[], int]) -> Study:
    """The study for sites of these names.

    Raises:
        VeilsumError: it cannot be compiled for them.
    """
    return draft_study(
        draft.request,
        federation_id=federation,
        coordinator="coordinator",
        participants=sorted(names),
        clock=clock,
        random=SYSTEM_RANDOM,
    ).compile()
