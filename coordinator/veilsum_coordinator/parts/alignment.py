"""The alignment of sites' features, as every method puts it in front: what it releases, the reference, and each site's map.

``one-shot``: one release per site; reference and maps are computed here, and every site fetches its own. ``iterated``: each
site keeps its own noised moments, the reference is found over secure sums of what sites compute from these, and each site
makes its own map. Both cost one release and give the same reference. After SLOT-Align (reference "barycenter"), and with
references that tell class means and site effects apart (:mod:`veilsum_aggregation.two_way`): shifts (reference "two-way"), or
shifts and slopes (reference "slopes").

How a result is applied to new records, as its manifest says it: columns, encoder, alignment and head, in this order.

A result repeats the arrays of the projection that its study used, so that it is applied without another result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import not_
from typing import Annotated, Any, Literal, Protocol

from pydantic import BeforeValidator, Field

from veilsum_aggregation.alignment import Kind
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.gaussian import AffineMap
from veilsum_aggregation.heads import LinearHead
from veilsum_coordinator.parts.base import Inputs, Missing, TaskPlan, need_label
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.parts.iteration import (
    SiteReference,
    barycenter_reference,
    iterate,
    maps_arrays,
    step_plans,
    two_way_reference,
    unaligned_row,
)
from veilsum_coordinator.parts.moment_plans import Split, class_moments, gaussian_moments
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.encoder import Encoder, Program, Projection, RandomFeatures
from veilsum_privacy.study.schema import DatasetSchema, DateColumn, NumberColumn
from veilsum_privacy.tasks.feature_maps import ALIGNMENT_MATRIX, ALIGNMENT_OFFSET, ENCODER_MATRIX, ENCODER_OFFSET
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.tasks.parameters import Alignment

LABEL = "alignment"
"""Label of the release that an alignment is made from."""

NOTHING_ALIGNED = "every site's moments are within their noise; nothing is aligned"


REMOVED = "auto"
"""A reference that there was: the release chose it. Held-out data refuted the choice (decision 97)."""

STATE = (
    'State reference = "two-way", "slopes" or "barycenter", or leave [parameters.alignment] out.'
    " Without noise two-way is the default; under noise an alignment may lose accuracy, so none is made unless it is stated."
)


def _known(reference: object) -> object:
    """A reference as studies state it now; "paper" is what studies that were signed before the rename say.

    Raises:
        ConfigurationError: the release was to choose.
    """
    if reference == REMOVED:
        raise ConfigurationError(
            f'alignment.reference = "{REMOVED}" was removed after version 0.2.',
            f"{STATE} Verify results of studies that were signed with it with that version.",
        )
    return "barycenter" if reference == "paper" else reference


class AlignmentParameters(Frozen):
    """The ``[parameters.alignment]`` table; all public.

    Attributes:
        reference: ``slopes`` and ``two-way`` fit class means and what sites do to them together, so that a site's mix of
            classes is not taken for it; they need a label. With ``two-way`` a site shifts all classes alike, with ``slopes``
            it also turns and stretches them about their centre. ``barycenter`` is the Wasserstein barycenter of the sites'
            pooled features (SLOT-Align). Without noise it is ``two-way`` by default; with noise it must be stated.
        mode: ``one-shot`` releases each site's moments per site, noised; ``iterated`` releases sums only.
        covariance: of the reference ``barycenter`` in one-shot mode: the barycenter's, or the plain ``mean`` of the sites', a
            control for what the geometry is worth.
        explained: whether a result of one-shot mode says how a site that took no part makes its map; it follows from the
            rest, and studies that were signed before do not state it.
        tau: how far covariances (``barycenter``: means as well) move to the reference, in [0, 1]; by default 0.4.
        rounds: of the fit of ``slopes`` and ``two-way``, by default 10; of the barycenter's fixed point, by default 200 in
            one-shot mode and 20 in iterated mode, where each is a round of all sites.
        shrinkage: of each site's covariance; ``auto`` is OAS without noise and by the noise's size with it, and what iterated
            mode takes. ``ledoit-wolf`` needs fourth moments: for ``barycenter``, one-shot, without noise only.
        share: part of the budget that the alignment's release takes where the method makes releases of its own; 0 to 1.
    """

    reference: Annotated[Kind | None, BeforeValidator(_known)] = None
    mode: Literal["one-shot", "iterated"] = "one-shot"
    covariance: Literal["barycenter", "mean"] = Field(default="barycenter", exclude_if=lambda kind: kind == "barycenter")
    explained: bool | None = Field(default=None, exclude_if=not_)
    tau: Real = Field(default=0.4, ge=0, le=1)
    rounds: int | None = Field(default=None, ge=1, le=1000)
    shrinkage: Literal["auto", "oas", "noised", "ridge", "ledoit-wolf"] = "auto"
    share: Real = Field(default=0.5, gt=0, lt=1)


class Applied(Protocol):
    """Any alignment, as a result repeats it: :attr:`Aligned.application` and :attr:`Aligned.arrays`."""

    @property
    def application(self) -> Mapping[str, Any] | None: ...

    @property
    def arrays(self) -> Mapping[str, Floats]: ...


@dataclass(frozen=True)
class Aligned:
    """What an alignment found, for a method to build on.

    Attributes:
        broadcast: arrays that later sums over aligned features need.
        maps: of each site of ``release.cohort``, in its order; empty where sites make their own.
        reference: arrays of the reference; empty where it could not be estimated.
        application: how a result says it (the key ``alignment``); None where nothing could be aligned.
        summary: of the result: convergence, and one row a site.
    """

    broadcast: Mapping[str, Floats]
    release: Release
    maps: tuple[AffineMap, ...]
    reference: Mapping[str, Floats]
    application: Mapping[str, Any] | None
    arrays: Mapping[str, Floats]
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether later tasks on aligned features can run: a site can make no map of its own without a reference."""
        return bool(self.broadcast)


def resolve_alignment(parameters: AlignmentParameters, inputs: Inputs, *, classes: bool = False) -> AlignmentParameters:
    """Fill in the defaults that depend on the inputs; ``classes`` as in :func:`alignment_plans`.

    Raises:
        ConfigurationError: the parameters contradict each other or the inputs, or state no reference under noise.
    """
    if parameters.reference is None and inputs.private:
        raise ConfigurationError("An alignment under noise must state its reference.", STATE)
    reference = parameters.reference or "two-way"
    by_class = reference != "barycenter"
    if parameters.covariance == "mean" and (by_class or parameters.mode != "one-shot"):
        raise ConfigurationError(
            'alignment.covariance = "mean" is a control beside the barycenter, in one-shot mode.', "Leave it out."
        )
    if by_class:
        need_label(inputs, f'alignment with reference = "{reference}"', ', or state reference = "barycenter"')
    _check_shrinkage(parameters, inputs, classes or by_class)
    rounds = parameters.rounds or (10 if by_class else 200 if parameters.mode == "one-shot" else 20)
    explained = True if parameters.mode == "one-shot" else None
    return parameters.model_copy(update={"reference": reference, "rounds": rounds, "explained": explained})


def _check_shrinkage(parameters: AlignmentParameters, inputs: Inputs, by_class: bool) -> None:
    shrinkage = parameters.shrinkage
    what, advice = f'alignment.shrinkage = "{shrinkage}"', "Leave it out for what suits the study."
    if shrinkage == "ledoit-wolf" and inputs.private:
        raise ConfigurationError(
            f"{what} cannot be had under noise: no noised release holds the fourth moments that it needs, and clear ones"
            " would break the guarantee of all that is made of them.",
            advice,
        )
    if inputs.private and shrinkage == "oas":
        raise ConfigurationError(f"{what} knows errors of sampling only, and this study has noise.", advice)
    if not inputs.private and shrinkage in ("noised", "ridge"):
        raise ConfigurationError(f"{what} goes by the noise, and this study has none.", advice)
    if shrinkage != "auto" and parameters.mode == "iterated":
        raise ConfigurationError(f"{what} is for one-shot mode; in iterated mode the sites shrink, by the default.", advice)
    if shrinkage == "ledoit-wolf" and by_class:
        raise ConfigurationError(f"{what} takes moments that are pooled over the classes; here they are by class.", advice)


def task_alignment(parameters: AlignmentParameters | None) -> tuple[Alignment | None, str | None]:
    """What a later task on aligned features states: its alignment, and the label of its source."""
    if parameters is None:
        return None, None
    if parameters.mode == "one-shot":
        return Alignment(kind="broadcast", tau=parameters.tau), None
    return Alignment(kind=_kind(parameters), tau=parameters.tau), LABEL


def alignment_plans(
    parameters: AlignmentParameters,
    inputs: Inputs,
    clip: float,
    missing: Missing,
    *,
    classes: bool = False,
    share: float = 1.0,
    split: Split | None = None,
) -> tuple[TaskPlan, ...]:
    """The release that the alignment is made from, and in iterated mode the steps, which cost nothing.

    Args:
        clip, missing: of the release's features, which are not aligned.
        classes: take class moments whatever the reference, for a method that builds on them.
        share: of the budget, against the shares of the method's other releases.
        split: of class moments among counts, sums and second moments; None for the default.
    """
    by_class = classes or parameters.reference != "barycenter"
    task = "class-moments" if by_class else "gaussian-moments"
    if by_class:
        values = class_moments(inputs, clip, missing, split=split)
    else:
        values = gaussian_moments(inputs, clip, missing, fourth=parameters.shrinkage == "ledoit-wolf")
    if parameters.mode == "one-shot":
        return (TaskPlan(LABEL, task, values, disclosure="per-site", share=share),)
    kept = TaskPlan(LABEL, task, values, keep=True, share=share)
    return kept, *step_plans(_kind(parameters), inputs, clip, LABEL, parameters.rounds or 1)


def plans_in_front(
    parameters: AlignmentParameters | None, inputs: Inputs, clip: float, missing: Missing
) -> tuple[tuple[TaskPlan, ...], float]:
    """The alignment's releases in front of a method's own, none without one; and the share of the budget left for these."""
    if parameters is None:
        return (), 1.0
    return alignment_plans(parameters, inputs, clip, missing, share=parameters.share), 1.0 - parameters.share


def align(federation: Federation, parameters: AlignmentParameters) -> Aligned:
    """Run the alignment's rounds; ``parameters`` are resolved.

    Where every site's moments are within their noise they give no reference. Then nothing is aligned, and the summary says so.
    In iterated mode no later task may then run that aligns: sites could not make their maps.
    """
    release = federation.sum(LABEL)
    summary: dict[str, Any] = {"reference": parameters.reference, "mode": parameters.mode, "tau": parameters.tau}
    if parameters.mode == "one-shot":
        return _one_shot(release, federation.study.participants, parameters, summary)
    reference, convergence = iterate(_kind(parameters), federation, release, parameters.rounds or 1)
    summary |= convergence
    if not reference:
        return Aligned({}, release, (), {}, None, {}, summary)
    # The sum holds one site's own noise for each member.
    noise = {name: std / len(release.cohort) ** 0.5 for name, std in release.noise_std.items()}
    application: dict[str, Any] = {
        "kind": _kind(parameters),
        "source": LABEL,
        "tau": parameters.tau,
        "reference": {name: name for name in reference},
        "noise_std": noise,
    }
    return Aligned(reference, release, (), reference, application, reference, summary)


def _one_shot(
    release: Release, participants: tuple[str, ...], parameters: AlignmentParameters, summary: dict[str, Any]
) -> Aligned:
    found = _reference(release, parameters)
    if found is None:
        summary["not_estimable"] = NOTHING_ALIGNED
        width = release.values["squares"].shape[-1]
        maps = tuple(AffineMap.identity(width) for _ in release.cohort)
        found = SiteReference({}, maps, {}, [unaligned_row(name) for name in release.cohort])
    absent = [unaligned_row(name) for name in participants if name not in release.cohort]
    summary |= {**found.convergence, "sites": found.rows + absent}
    matrix, offset = maps_arrays(participants, release.cohort, found.maps)
    arrays = {ALIGNMENT_MATRIX: matrix, ALIGNMENT_OFFSET: offset}
    application: dict[str, Any] = {
        "kind": "maps",
        "sites": list(participants),
        "matrix": ALIGNMENT_MATRIX,
        "offset": ALIGNMENT_OFFSET,
    }
    if parameters.explained:
        names = {name: name for name in found.arrays}
        application["made_by"] = {"kind": _kind(parameters), "tau": parameters.tau, "reference": names}
    return Aligned(arrays, release, found.maps, found.arrays, application, {**arrays, **found.arrays}, summary)


def _reference(release: Release, parameters: AlignmentParameters) -> SiteReference | None:
    rounds, tau, kind = parameters.rounds or 1, parameters.tau, _kind(parameters)
    if kind == "barycenter":
        return barycenter_reference(
            release, tau=tau, shrinkage=parameters.shrinkage, rounds=rounds, plain=parameters.covariance == "mean"
        )
    if parameters.shrinkage == "ledoit-wolf":  # resolved parameters do not say so
        raise ConfigurationError("Ledoit-Wolf shrinkage takes moments that are pooled over the classes.")
    return two_way_reference(release, tau=tau, shrinkage=parameters.shrinkage, rounds=rounds, kind=kind)


def _kind(parameters: AlignmentParameters) -> Kind:
    if parameters.reference is None:
        raise ConfigurationError("A compiled study states the reference of its alignment.", "Compile the study anew.")
    return parameters.reference


LINEAR = {"kind": "linear", "weights": "weights", "bias": "bias"}
"""A linear head, as an application says it."""


def application(
    schema: DatasetSchema,
    *,
    missing: Missing = "centre",
    encoder: Mapping[str, Any] | None = None,
    alignment: Mapping[str, Any] | None = None,
    head: Mapping[str, Any] | None = None,
    classes: Sequence[str] = (),
) -> dict[str, Any]:
    """The application of a result, as JSON.

    Args:
        missing: the missing rule of the study's tasks.
        encoder: from :func:`encoder_application`.
        alignment: of :class:`veilsum_coordinator.parts.alignment.Aligned`.
        head: :data:`LINEAR`, or another that names its arrays.
        classes: of the head, in the order of its scores.
    """
    columns: list[dict[str, Any]] = []
    for column in schema.columns:
        if isinstance(column, NumberColumn):
            shape = {"low": column.low, "high": column.high, "unit": column.unit}
        else:
            shape = column.model_dump(mode="json", exclude={"kind", "name", "impute"})
        if isinstance(column, DateColumn):
            shape["origin"] = column.origin
        columns.append({"kind": column.kind, "name": column.name, **shape, "impute": column.impute})
    label = None if schema.label is None else schema.label.model_dump(mode="json")
    rest = "a record without one has no scores" if missing == "skip" else "where there is none, 0"
    return {
        "features": columns,
        "file": {"label": label, "header": schema.header, "order": list(schema.order), "missing": list(schema.missing)},
        "scaling": "number: 2 (clamp(x, low, high) - low) / (high - low) - 1; category: one indicator each, in order",
        "missing": f"take impute; {rest}",
        "missing_rule": missing,
        "encoder": None if encoder is None else dict(encoder),
        "alignment": None if alignment is None else dict(alignment),
        "head": None if head is None else dict(head),
        "classes": list(classes),
        "scores": "" if head is None else _CLIPPED if "clip" in head else _SCORES[str(head["kind"])],
    }


def outcome_application(
    schema: DatasetSchema, outcome: Outcome, *, missing: Missing, head: Mapping[str, Any], most: float | None = None
) -> dict[str, Any]:
    """The application of a model of a number, a count or a time: it reads all columns but the outcome's.

    Args:
        missing, head: as of :func:`application`.
        most: of counts, what larger predictions are taken as, in the column's unit.
    """
    found = application(outcome.features(schema), missing=missing, head=head)
    told, scores = outcome.told(schema), _OUTCOMES[outcome.loss]
    if most is not None:
        told, scores = {**told, "most": most}, f"{scores}, at most `most`"
    return {**found, "outcome": told, "scores": scores}


_OUTCOMES = {
    "squared": "score s of the head; the number is low + (s + 1) (high - low) / 2",
    "huber": "score s of the head; the number is low + (s + 1) (high - low) / 2",
    "poisson": "score s of the head; the mean count is exp(s) (high - low) / 2",
    "hazard": "score s_j of the head for each period, which end at the cuts and at high; the hazard is exp(s_j) / high",
}

_CLIPPED = "features less centre, scaled down to a norm of clip, @ weights.T + bias; the class with the largest score"

_SCORES = {
    "linear": "features @ weights.T + bias; the class with the largest score",
    "network": "the named model's, on the arrays that begin with the prefix; the class with the largest score",
    "mlp": "layer by layer, a rectifier between them; the class with the largest score",
}


def encoder_application(encoder: Encoder | None) -> dict[str, Any] | None:
    """How a result names the encoder of its study."""
    if isinstance(encoder, Program | RandomFeatures):
        return encoder.model_dump(mode="json")
    if isinstance(encoder, Projection):
        return {"kind": "projection", "sha256": encoder.sha256, "matrix": ENCODER_MATRIX, "offset": ENCODER_OFFSET}
    return None


def study_application(
    federation: Federation,
    missing: Missing,
    aligned: Applied | None = None,
    head: Mapping[str, Any] | None = None,
    classes: Sequence[str] = (),
) -> dict[str, Any]:
    """The application of a result of this study; ``aligned`` is None where its features were not aligned."""
    study = federation.study
    return application(
        study.data,
        missing=missing,
        encoder=encoder_application(study.encoder),
        alignment=None if aligned is None else aligned.application,
        head=head,
        classes=classes,
    )


def study_arrays(federation: Federation, aligned: Applied | None = None) -> dict[str, Floats]:
    """The arrays that :func:`study_application` names, but for the head's."""
    encoder = dict(federation.encoder) if isinstance(federation.study.encoder, Projection) else {}
    return {**encoder, **({} if aligned is None else aligned.arrays)}


def study_result(
    federation: Federation,
    summary: Mapping[str, Any],
    missing: Missing,
    head: Mapping[str, Any],
    arrays: Mapping[str, Floats],
    classes: Sequence[str],
    aligned: Applied | None = None,
) -> Result:
    """A result of this study that is applied to tell classes.

    Args:
        missing, head, classes: as of :func:`application`.
        arrays: of the head, and any others.
        aligned: as of :func:`study_application`.
    """
    applied = study_application(federation, missing, aligned, head, classes)
    return Result(federation.study.method, summary, {**study_arrays(federation, aligned), **arrays}, applied)


def linear_result(
    federation: Federation,
    summary: Mapping[str, Any],
    missing: Missing,
    head: LinearHead,
    aligned: Aligned | None = None,
    arrays: Mapping[str, Floats] | None = None,
) -> Result:
    """The same of a linear head; ``arrays`` are any others."""
    form, own = dict[str, Any](LINEAR), {"weights": head.weights, "bias": head.bias}
    if head.centre is not None:
        form, own = {**form, "centre": "centre", "clip": head.clip}, {**own, "centre": head.centre}
    return study_result(federation, summary, missing, form, {**own, **(arrays or {})}, head.classes, aligned)
