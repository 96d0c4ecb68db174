"""From an analyst's ``study.toml`` to the study that everyone agrees to: every task, parameter, grid and variance stated.

Grid and noise follow from public values alone: the schema's ``max_records``, the number of participants and the privacy
demand, which is an epsilon or the error that the noise may cause. This module signs nothing and submits nothing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from veilsum.forecasts import SEARCH_RUNS, Forecast, forecast, main_error
from veilsum.quantisation import NoGridError, derived_grid, plan_grid, training_resolution
from veilsum.rehearsal import Rehearsal
from veilsum.request import LARGEST_EPSILON, PrivacyRequest, ReleasedProjection, StudyRequest, load_study_request
from veilsum.typical import check_guesses
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.parts.base import Inputs, Method, TaskPlan
from veilsum_node.config import did_you_mean, validate
from veilsum_node.errors import ConfigurationError, Misuse, told_as
from veilsum_node.fields import Frozen
from veilsum_node.phrases import rounded
from veilsum_node.randomness import RandomSource
from veilsum_privacy.accounting.accountant import Adaptive, Course, GaussianEvent, epsilon_of
from veilsum_privacy.accounting.figures import calibrate_noise_multiplier
from veilsum_privacy.accounting.gaussian import SMOOTHING
from veilsum_privacy.accounting.prices import declared_event
from veilsum_privacy.study.encoder import Projection, RandomFeatures
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import MAX_STUDY_BYTES, STATEMENTS, Study, TaskDeclaration
from veilsum_privacy.tasks import TASKS, build_task
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import DerivedTask, FactorTask, TrainingTask

__all__ = ["PrivacyRequest", "StudyDraft", "StudyRequest", "draft_study", "load_study_request"]

MOST_NOISE = 1000.0
"""Noise multiplier of one release beyond which epsilon hardly falls any more by RDP, at orders up to 1024."""

MOST_TRIES, MOST_CHANGE = 24, 8.0
"""Rehearsals of a search for an epsilon, and by what factor noise changes from one to the next at most."""

_FINE = 2**40  # a grid so fine that nothing is rounded


@dataclass(frozen=True)
class StudyDraft:
    """A request that is resolved but for its noise.

    Attributes:
        request: with the schema in ``data``.
        members: the participants' names, sorted.
        common: all other fields of the study.
    """

    request: StudyRequest
    schema: DatasetSchema
    method: Method[Any]
    parameters: Frozen
    plans: tuple[TaskPlan, ...]
    members: tuple[str, ...]
    common: dict[str, Any]

    @property
    def records(self) -> int:
        """Records that each site is expected to have."""
        return self.request.expected_records or self.schema.max_records

    @property
    def releases(self) -> int:
        """Noised steps of all releases that cost privacy."""
        return sum(plan.steps for plan in self.plans if not plan.derived)

    @cached_property
    def rehearsal(self) -> Rehearsal:
        """The rehearsal of its studies, if all participants take part."""
        width = None if self.request.encoder is None else self.request.encoder.width  # type: ignore[union-attr]  # it is read
        return Rehearsal(
            self.method,
            self.schema,
            width,
            self.request.expected,
            len(self.members),
            self.records,
            self.releases,
            self._values,
        )

    @property
    def _values(self) -> int:
        """Number of values of the longest vector of its tasks."""
        return max(
            build_task(plan.task, plan.parameters.model_dump(mode="json"), self.schema).layout().size for plan in self.plans
        )

    def forecast(self, study: Study) -> tuple[Forecast, ...]:
        """How well the quantities of a study compiled from this draft will be known; none where it is not rehearsed."""
        return forecast(self.rehearsal, study)

    def compile(self) -> Study:
        """The study, with the noise that was asked for.

        Raises:
            ConfigurationError: no noise or grid suits the demand; the message says why.
        """
        demand = self.request.privacy
        if demand.error is not None:
            return self._bounded(demand.error, demand.max_epsilon)
        return self.compile_with(None if demand.epsilon is None else self._multiplier(demand.epsilon))

    def compile_with(self, multiplier: float | None) -> Study:
        """The study with noise of ``multiplier`` times the sensitivity in every release, or without noise.

        Where plans take unequal shares of the budget, their multipliers differ such that all together cost the same.

        Its epsilon is what its rule gives for the noise as rounded to the grid, never above the demand.

        Raises:
            ConfigurationError: no grid fits, or a task cannot be built.
        """
        schema, demand = self.schema, self.request.privacy
        honest = max(1, len(self.members) - demand.assumed_colluders) if demand.noise == "distributed" else 1
        members = len(self.members)
        tasks: list[TaskDeclaration] = []
        for plan in self.plans:
            if plan.derived:
                tasks.append(plan.declaration(grid=derived_grid(members), variance=0))
                continue
            own = None if multiplier is None else self._own_multiplier(plan, multiplier)
            built = build_task(plan.task, plan.parameters.model_dump(mode="json"), schema)
            single = bool(built.single_arrays())
            if isinstance(built, TrainingTask):
                grid = plan_grid(max_records=schema.max_records, participants=1, multiplier=own, values=built.step_size())
                resolution = training_resolution(members, private=own is not None)
                tasks.append(
                    plan.declaration(
                        grid=grid.grid,
                        variance=grid.variance,
                        resolution=resolution,
                        single_precision=single,
                        slack=self._slack(),
                    )
                )
                continue
            shares = 1 if plan.keep or plan.own_noise else honest
            rounded = isinstance(built, FactorTask)
            unrounded = rounded and own is not None
            values = built.layout().size if rounded else 0
            grid = plan_grid(
                max_records=schema.max_records, participants=members, multiplier=own, honest=shares, values=values,
                norm=built.integer_norm(), unrounded=unrounded,
            )  # fmt: skip
            tasks.append(
                plan.declaration(
                    grid=grid.grid, variance=grid.variance, single_precision=single, unrounded=unrounded, slack=self._slack()
                )
            )
        # The noised vector of one site must not show by subtraction.
        derived = any(plan.derived or plan.keep for plan in self.plans)
        privacy = {
            "epsilon": _reached(tasks, demand.delta, self._rule),
            "delta": demand.delta,
            "noise": demand.noise,
            "assumed_colluders": demand.assumed_colluders,
            "min_cohort": demand.min_cohort if demand.min_cohort is not None else len(self.members),
            "cohort_difference": demand.cohort_difference or ("strict" if demand.noise == "none" or derived else "allowed"),
            "unit": self.request.unit(schema),
            "accounting": demand.accounting if multiplier is not None else "rdp",
        }
        study = validate({**self.common, "privacy": privacy, "tasks": tasks}, Study, source=f"study {self.request.name!r}")
        if (size := len(study.to_bytes())) > MAX_STUDY_BYTES:
            told = f"study {self.request.name!r} is {size:,} bytes long, of {MAX_STUDY_BYTES:,} at most."
            raise ConfigurationError(told, "Name fewer columns, or fewer codes in groups: a code stands for all below it.")
        _ = AgreedStudy(study).tasks  # what no participant could build is not submitted
        self.method.check(study)
        return study

    def compile_for(self, error: float) -> Study | None:
        """The study of the smallest epsilon whose main quantities are known to within ``error`` of their expected size.

        The error is that of a rehearsal whose draws are the same at any noise. It is about in proportion to the noise, or
        levels off where sampling outweighs it. The noise found is within 2% of the most that meets the error, where
        :data:`MOST_TRIES` rehearsals are enough for that.

        Returns:
            None where no epsilon up to 1e4 reaches it, where nothing is forecast, or where the study has no noise to choose.

        Raises:
            ConfigurationError: as :meth:`compile_with`, whatever the noise.
        """
        if self.request.privacy.noise == "none":
            return None
        least, most = self._multiplier(LARGEST_EPSILON), MOST_NOISE * math.sqrt(self.releases)
        low, high, noise = 0.0, math.inf, self._multiplier(1.0)  # met at low, missed at high
        met: Study | None = None
        for _ in range(MOST_TRIES):
            study, found = self._tried(noise)
            if study is not None and found <= error:
                met, low = study, noise
            else:
                high = noise
            if low >= most or high <= least or high <= 1.02 * low:
                break
            change = 0.995 * error / found if found > 0.0 else MOST_CHANGE
            wanted = noise * min(max(change, 1.0 / MOST_CHANGE), MOST_CHANGE)
            wanted = min(max(wanted, 1.01 * low), high / 1.01)  # to come from below to where it is missed as well
            if low and high < math.inf and not low < wanted < high:
                wanted = math.sqrt(low * high)
            noise = min(max(wanted, least), most)
            if noise in (low, high):
                noise = math.sqrt(max(low, least) * min(high, most))
        return met

    def _tried(self, multiplier: float) -> tuple[Study | None, float]:
        """The study with this noise, if a grid takes it, and its error."""
        try:
            study = self.compile_with(multiplier)
        except NoGridError:
            return None, math.inf
        return study, main_error(forecast(self.rehearsal, study, SEARCH_RUNS))

    def _bounded(self, error: float, most: float | None) -> Study:
        study = self.compile_for(error)
        asked = f"study {self.request.name!r}, privacy.error: {error:g} of the expected size"
        advice = f"Ask for a larger error, or state more expected_records if the sites have more than {self.records} each."
        if study is None or study.privacy.epsilon is None:
            raise ConfigurationError(f"{asked} is out of reach at any epsilon up to {LARGEST_EPSILON:g}.", advice)
        if most is not None and study.privacy.epsilon > most:
            raise ConfigurationError(
                f"{asked} takes epsilon {rounded(study.privacy.epsilon)}; max_epsilon is {most:.15g}.",
                f"Raise max_epsilon. {advice}",
            )
        return study

    def _own_multiplier(self, plan: TaskPlan, multiplier: float) -> float:
        """Noise multiplier of a plan whose share of the budget differs from the others': 1 / share of the mean's variance."""
        total = sum(other.share * other.steps for other in self.plans if not other.derived) / max(self.releases, 1)
        return multiplier * math.sqrt(total / plan.share)

    @property
    def _rule(self) -> Adaptive:
        return "gaussian" if self.request.privacy.accounting == "gaussian" else "standard"

    def _slack(self) -> float:
        """What each sampled task states."""
        demand, sampled = self.request.privacy, sum(plan.sampling_rate < 1 and not plan.derived for plan in self.plans)
        return demand.slack * demand.delta / sampled if sampled and demand.accounting == "gaussian" else 0.0

    def _multiplier(self, epsilon: float) -> float:
        if any(plan.sampling_rate < 1 for plan in self.plans):
            return self._sampled_multiplier(epsilon)
        with told_as(ConfigurationError, Misuse):
            return calibrate_noise_multiplier(epsilon, self.request.privacy.delta, self.releases, self._rule)

    def _sampled_multiplier(self, epsilon: float) -> float:
        """The least noise that meets ``epsilon`` where records are sampled, to within 0.01%."""
        delta = self.request.privacy.delta
        plans, slack = [plan for plan in self.plans if not plan.derived], self._slack()

        def cost(multiplier: float) -> float:
            events = []
            for plan in plans:
                variance = (Fraction(self._own_multiplier(plan, multiplier)) * _FINE) ** 2 + SMOOTHING
                course = Course(plan.steps, slack) if slack and plan.sampling_rate < 1 else None
                events.append(GaussianEvent(_FINE, variance, plan.sampling_rate, plan.steps, course))
            return epsilon_of(events, delta, self._rule)

        low, high = 0.05, 1.0
        while cost(high) > epsilon:
            low, high = high, 2.0 * high
            if high > MOST_NOISE * math.sqrt(self.releases):
                raise ConfigurationError(f"No noise reaches epsilon {epsilon:g} at delta {delta:g}.", "Ask for more.")
        while high - low > 1e-4 * high:
            middle = (low + high) / 2.0
            low, high = (middle, high) if cost(middle) > epsilon else (low, middle)
        return high


def draft_study(
    request: StudyRequest,
    *,
    federation_id: str,
    coordinator: str,
    participants: Sequence[str],
    clock: Callable[[], int],
    random: RandomSource,
) -> StudyDraft:
    """Resolve everything of a request but its noise; :meth:`StudyDraft.compile` leaves nothing to defaults.

    Args:
        request: from :func:`load_study_request`.
        federation_id: hash of the authority's certificate, 64 hexadecimal digits.
        participants: names of the federation's participants.
        clock: Unix time in seconds.
        random: for the nonce.

    Raises:
        ConfigurationError: the request cannot be compiled; the message says why.
    """
    if request.data is None:
        raise Misuse("The request's schema has not been read.", "Use load_study_request.")
    schema = request.data
    if request.expected_records is not None and request.expected_records > schema.max_records:
        raise ConfigurationError(
            f"study {request.name!r}, expected_records: {request.expected_records} exceeds the schema's max_records.",
            f"Records beyond {schema.max_records} are not used; raise max_records in the schema.",
        )
    check_guesses(request.expected, schema, f"study {request.name!r}")
    members = _members(request, participants)
    method = get_method(request.method)
    source = f"study {request.name!r}, parameters"
    private = request.privacy.noise != "none"
    if isinstance(request.encoder, ReleasedProjection):
        raise Misuse("The request's projection has not been read.", "Use load_study_request.")
    encoder = request.encoder
    if isinstance(encoder, RandomFeatures):
        left = {"gamma": encoder.gamma or 1.0 / schema.width, "inputs": encoder.inputs or schema.width}
        encoder = validate({**encoder.model_dump(), **left}, RandomFeatures, source=f"study {request.name!r}, [encoder]")
    if encoder is not None and encoder.size != schema.width:
        released = isinstance(encoder, Projection)
        raise ConfigurationError(
            f"study {request.name!r}, [encoder]: the {encoder.kind} takes {encoder.size} features;"
            f" the schema has {schema.width}.",
            "Use the schema of the study that released it." if released else "Correct encoder.inputs, or the schema.",
        )
    records, unit = request.expected_records or schema.max_records, request.unit(schema)
    inputs = Inputs(schema, encoder, len(members), private, records, request.privacy.epsilon, unit)
    if "outcome" in request.all_parameters and "outcome" not in method.Parameters.model_fields:
        from veilsum_coordinator.parts.base import OF_OUTCOMES

        raise ConfigurationError(f"{source}: the method {method.name} takes no outcome.", OF_OUTCOMES)
    parameters = method.resolve(validate(request.all_parameters, method.Parameters, source=source), inputs)
    created = clock()
    common: dict[str, Any] = {
        "version": 1,
        "name": request.name,
        "federation": federation_id,
        "coordinator": coordinator,
        "nonce": random.bytes(16).hex(),
        "created": created,
        "expires": created + 3600 * request.expires_hours,
        "method": request.method,
        "parameters": parameters.model_dump(mode="json"),
        "dataset": request.dataset,
        "data": schema,
        "encoder": encoder,
        "participants": members,
        "weights": dict.fromkeys(members, 1),
        **{name: getattr(request, name) for name in STATEMENTS},
    }
    return StudyDraft(request, schema, method, parameters, method.declare(parameters, inputs), tuple(members), common)


def _members(request: StudyRequest, participants: Sequence[str]) -> list[str]:
    """The study's participants, sorted by the bytes of their names."""
    for name in request.participants:
        if name not in participants:
            raise ConfigurationError(
                f"study {request.name!r}, participants: {name!r} is not in the federation.", did_you_mean(name, participants)
            )
    return sorted(set(request.participants or participants), key=str.encode)


def _reached(tasks: Sequence[TaskDeclaration], delta: float, rule: Adaptive) -> float | None:
    """Epsilon of all releases with the noise as it is on the grid; None without noise."""
    costly = [task for task in tasks if not issubclass(TASKS[task.task], DerivedTask)]
    if any(task.variance == 0 for task in costly):
        return None
    return epsilon_of([declared_event(task) for task in costly], delta, rule)
