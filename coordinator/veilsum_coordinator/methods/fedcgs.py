"""The method "fedcgs": a linear discriminant from one secure sum of class counts, class sums and pooled second moments.

After FedCGS (Guan et al. 2025), with the within-class covariance in place of the total one, and with block weights and
shrinkage that follow from the noise. No training rounds: one release is the whole cost, with an alignment before it as well,
for affine maps turn released moments into moments. Generation in front replaces the moments by those of generated features.

Columns by class, released first: a discriminant's features are taken about their means, and its result shows them.

From class moments of each site to those of all, after each site's affine map: what a second release would give, free.

An affine map turns moments into moments, so what is learnt from class moments after an alignment needs no release but the
alignment's own.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from veilsum_aggregation import moments
from veilsum_aggregation.alignment import mapped_moments, mapped_noise
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.gaussian import AffineMap
from veilsum_aggregation.heads import LinearHead, NoiseInWeights, indicator_ridge, lda_head, noise_in_weights
from veilsum_aggregation.shrinkage import noise_ridge, shrink_ridge
from veilsum_aggregation.tables import count
from veilsum_coordinator.parts.alignment import (
    Aligned,
    AlignmentParameters,
    align,
    alignment_plans,
    linear_result,
    plans_in_front,
    resolve_alignment,
    task_alignment,
)
from veilsum_coordinator.parts.base import FeatureRules, Inputs, Method, TaskPlan, need_label, resolved_clip, task_parameters
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.parts.generation import (
    NO_CLASS,
    NO_HEAD,
    FeatureUse,
    GenerationParameters,
    generation_plans,
    run_generation,
)
from veilsum_coordinator.parts.iteration import ROOM, site_blocks
from veilsum_coordinator.parts.moment_plans import (
    DEFAULT_SPLIT,
    MEANS,
    TWO_CLASSES_SPLIT,
    Split,
    centre_plan,
    centred_clip,
    class_moments,
    released_centre,
)
from veilsum_coordinator.parts.query_requests import QueryRequest, expand, weigh
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Real
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.encoder import RandomFeatures
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema
from veilsum_privacy.study.study import Disclosure, Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.features import CENTRE
from veilsum_privacy.tasks.queries.base import ReleasedPart
from veilsum_privacy.tasks.queries.kinds.means import Means
from veilsum_privacy.tasks.queries.language import Columns
from veilsum_privacy.tasks.tables import questions_of

COLUMNS = "columns"
"""Label of the release."""

NUMBERS = "numbers-by-class"
"""Name of the query about numbers, and of its table; those about categories follow it."""

TESTS = f"{NUMBERS} tests"
"""Name of the table of its tests."""

SHARES = "categories-by-class"
"""Name of the table of all categories."""

MOMENTS, ALIGNED = "class-moments", "aligned-moments"
"""Labels: of the release without an alignment, and of the sum after each site's own map."""


class FedCGSParameters(FeatureRules):
    """Parameters, all public.

    Attributes:
        clip: L2 norm that a record's features are scaled down to. By default, of centred features sqrt(numbers / 30 +
            categorical columns / 2); of the schema's own features as they are the root mean square norm of a record whose
            numbers are spread evenly between their bounds, sqrt(numbers / 3 + categorical columns), and without noise what no
            record exceeds; of a projection's features 0.7, and without noise 8. Features that a program makes have no default.
        centre: whether a noised mean of the schema's own features, or of random ones, is released first and taken off them. By
            default it is with noise, where neither an alignment nor generation comes before, and moments are joint.
        centre_share: part of the budget that this release takes.
        describe: whether this release is of every column by class, so that the result has class means, standard deviations and
            shares in the columns' own units. Its mean has more noise, which costs some accuracy where epsilon is small.
        head: ``discriminant``, or ``ridge``: regression of the classes' indicators on the features, of the same sums.
        ridge: of that regression, against a sum over records. By default 1 without noise, and under noise what it can add to a
            direction of the second moments.
        priors: class probabilities of the discriminant, ``released`` (from the noised counts) or ``equal``.
        disclosure: ``joint`` releases the sum over all sites, ``per-site`` each site's own moments. An alignment's mode says
            it in its place.
        split: of the release's cost among counts, sums and second moments; by default 15, 65 and 20 of 100, and of centred
            features of two classes 10, 55 and 35.
        shrinkage: of the covariance under noise: ``noised`` weighs variances and covariances by what is known of their noise,
            ``ridge`` adds what the noise can add to a direction. Without noise it is OAS.
        covariance: of the discriminant: ``within`` the classes, or ``total``, about the mean of all records, as FedCGS has it.
        scored: whether the head scores records ``clipped`` about the centre, as those were that it is made of, or ``whole``.
            By default clipped where there is a centre; studies signed before do not state it, and are scored whole.
        alignment: of the sites' features; its release is then the only one.
        generation: of features from class geometries; the discriminant is that of infinitely many of them.
    """

    centre: bool | None = None
    centre_share: Real = Field(default=0.2, gt=0, lt=1)
    describe: bool = False
    priors: Literal["released", "equal"] = "released"
    disclosure: Disclosure = "joint"
    split: Split | None = None
    shrinkage: Literal["noised", "ridge"] = "noised"
    covariance: Literal["within", "total"] = Field(default="within", exclude_if=lambda kind: kind == "within")
    head: Literal["discriminant", "ridge"] = Field(default="discriminant", exclude_if=lambda kind: kind == "discriminant")
    ridge: Real | None = Field(default=None, gt=0, le=1e12, exclude_if=lambda stated: stated is None)
    scored: Literal["clipped", "whole"] | None = Field(default=None, exclude_if=lambda scored: scored is None)
    alignment: AlignmentParameters | None = None
    generation: GenerationParameters | None = None


class FedCGS(Method[FedCGSParameters]):
    """One round of "class-moments", then shrinkage and linear discriminant analysis."""

    name = "fedcgs"
    rehearsals = 12

    def resolve(self, parameters: FedCGSParameters, inputs: Inputs) -> FedCGSParameters:
        alignment = parameters.alignment
        if alignment is not None:
            by_class = parameters.generation is None
            alignment = resolve_alignment(alignment, inputs, classes=by_class)
        alone = alignment is None and parameters.generation is None and parameters.disclosure == "joint"
        drawn = isinstance(inputs.encoder, RandomFeatures)
        possible = alone and (inputs.encoder is None or drawn) and inputs.private
        if parameters.head == "ridge" and parameters.generation is not None:
            raise ConfigurationError(
                "A ridge is of released records, and generation has none.", 'Leave `head` out, or take "discriminant".'
            )
        if parameters.head == "ridge" and (parameters.covariance == "total" or parameters.priors == "equal"):
            raise ConfigurationError("A ridge has neither priors nor a covariance to choose.", "Leave them out.")
        if parameters.ridge is not None and parameters.head != "ridge":
            raise ConfigurationError("`ridge` is of the head of that name.", 'State head = "ridge", or leave it out.')
        if parameters.centre and not possible:
            raise ConfigurationError(
                "fedcgs centres the schema's own features, and random ones, in studies with noise and of joint moments alone.",
                "Leave `centre` out.",
            )
        centre = possible and parameters.centre is not False
        if parameters.describe and (drawn or not centre):
            raise ConfigurationError(
                "fedcgs describes the columns where it centres them: in studies with noise and of joint moments alone.",
                'Leave `describe` out, and ask the method statistics (kind = "table-one", by the label).',
            )
        if parameters.covariance == "total" and parameters.generation is not None:
            raise ConfigurationError(
                "The total covariance is that of released records, and generation has none.", "Leave `covariance` out."
            )
        if parameters.scored == "clipped" and not centre:
            raise ConfigurationError(
                "fedcgs scores records clipped about their centre, where it takes one off.", "Leave `scored` out."
            )
        clip = parameters.clip or (centred_clip(inputs.schema, inputs.encoder) if centre else None)
        default = TWO_CLASSES_SPLIT if centre and len(inputs.classes) == 2 else DEFAULT_SPLIT
        resolved = {
            "clip": resolved_clip(clip, inputs),
            "alignment": alignment,
            "centre": centre,
            "split": parameters.split or default,
            "scored": parameters.scored or ("clipped" if centre else None),
        }
        return parameters.model_copy(update=resolved)

    def declare(self, parameters: FedCGSParameters, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if parameters.clip is None:
            raise ConfigurationError("The method fedcgs needs the defaults of its parameters resolved.")
        need_label(inputs, "the method fedcgs")
        clip, missing, alignment = parameters.clip, parameters.missing, parameters.alignment
        if parameters.disclosure == "per-site" and (alignment is not None or parameters.generation is not None):
            raise ConfigurationError(
                'disclosure = "per-site" is for fedcgs without alignment and generation; these state their own.',
                'Leave it out; an alignment is per site with mode = "one-shot", generation with mode = "multi-domain".',
            )
        if parameters.generation is not None:
            use = FeatureUse.of(inputs, clip, missing, alignment)
            before, left = plans_in_front(alignment, inputs, clip, missing)
            return *before, *generation_plans(parameters.generation, use, share=left)
        if alignment is None:
            task = class_moments(inputs, clip, missing, split=parameters.split)
            if not parameters.centre:
                return (TaskPlan(MOMENTS, "class-moments", task, disclosure=parameters.disclosure),)
            share = float(parameters.centre_share)
            centred = TaskPlan(MOMENTS, "class-moments", task.model_copy(update={"centre": True}), share=1.0 - share)
            first = columns_plan(inputs, share) if parameters.describe else centre_plan(inputs, missing, clip, share)
            return first, centred
        plans = alignment_plans(alignment, inputs, clip, missing, classes=True, split=parameters.split)
        if alignment.mode == "one-shot":
            return plans
        own, source = task_alignment(alignment)
        mapped = task_parameters("aligned-moments", width=inputs.width, alignment=own, reach=ROOM * clip)
        return *plans, TaskPlan(ALIGNED, "aligned-moments", mapped, source=source)

    def check(self, study: Study) -> None:
        if study.parameters.get("describe") and study.privacy.unit != "record":
            raise ConfigurationError(
                "fedcgs describes records; those of a person, or site, are shortened together, and no mean would be right.",
                'Leave `describe` out, and ask the method statistics with person = "first".',
            )

    def compute(self, federation: Federation) -> Result:
        study = federation.study
        parameters = FedCGSParameters.model_validate(study.parameters)
        aligned = None if parameters.alignment is None else align(federation, parameters.alignment)
        summary: dict[str, Any] = {} if aligned is None else {"alignment": dict(aligned.summary)}
        if parameters.generation is not None:
            return self._generated(federation, parameters, aligned, summary)
        centre, described = self._centre(federation, parameters)
        release = self._moments(federation, parameters, aligned, centre)
        counts, std = release.values["counts"], release.noise_std["counts"]
        known = [index for index, number in enumerate(counts) if not moments.within_noise(float(number), std)]
        summary = {
            "cohort": len(release.cohort),
            "classes": [
                {"class": name, "count": count(float(number), std).to_json(), "in_head": index in known}
                for index, (name, number) in enumerate(zip(study.data.classes, counts, strict=True))
            ],
            **summary,
            **described,
        }
        if not known:
            summary["not_estimable"] = NO_CLASS
            return Result(self.name, summary)
        head, noise = discriminant(release, study.data, known, parameters)
        if study.privacy.noise != "none":
            summary["weights"] = {"share_of_noise": noise.share}
        if noise.explains:
            summary["not_estimable"] = NO_HEAD
            return Result(self.name, summary)
        if centre is not None and parameters.scored == "clipped":
            head = replace(head, centre=centre, clip=parameters.clip)
        elif centre is not None:
            head = replace(head, bias=head.bias - head.weights @ centre)
        return linear_result(federation, summary, parameters.missing, head, aligned)

    def _centre(self, federation: Federation, parameters: FedCGSParameters) -> tuple[Floats | None, dict[str, Any]]:
        """What is taken off the features, None for nothing; and what its release tells of the columns."""
        if not parameters.centre:
            return None, {}
        if not parameters.describe:
            return released_centre(federation.sum(MEANS), federation.study), {}
        columns = federation.sum(COLUMNS)
        return released_means(columns, federation.study), class_tables(columns, federation.study)

    def _moments(
        self, federation: Federation, parameters: FedCGSParameters, aligned: Aligned | None, centre: Floats | None
    ) -> Release:
        """Joint class moments of the features that the head takes, with the noise that they hold."""
        if aligned is None:
            release = federation.sum(MOMENTS, None if centre is None else {CENTRE: centre})
            return release if parameters.disclosure == "joint" else joined(release)
        if parameters.alignment is not None and parameters.alignment.mode == "one-shot":
            return joined(aligned.release, aligned.maps)
        if not aligned.ready:
            return aligned.release
        return mapped_at_sites(aligned.release, federation.sum(ALIGNED, aligned.broadcast))

    def _generated(
        self, federation: Federation, parameters: FedCGSParameters, aligned: Aligned | None, summary: dict[str, Any]
    ) -> Result:
        names = federation.study.data.classes
        if parameters.generation is None or (aligned is not None and not aligned.ready):
            summary["not_estimable"] = "there is no alignment to generate after"
            return Result(self.name, summary)
        generation = run_generation(federation, parameters.generation, {} if aligned is None else aligned.broadcast)
        known = generation.known
        summary["classes"] = [{"class": name, "in_head": index in known} for index, name in enumerate(names)]
        if generation.noise is not None:
            summary["weights"] = {"share_of_noise": generation.noise.share}
        if generation.not_estimable is not None:
            summary["not_estimable"] = generation.not_estimable
            return Result(self.name, summary)
        tends = generation.moments()
        counts, sums = tends["counts"][known], tends["sums"][known]
        within = moments.within_covariance(counts, sums, tends["second"][known].sum(axis=0))
        # Released counts, not generated ones, tell how frequent the classes are.
        priors = generation.geometry.counts[known] if parameters.priors == "released" else np.ones(len(known))
        classes = tuple(names[index] for index in known)
        head = lda_head(sums / counts[:, None], _regular(within), priors, classes)
        return linear_result(federation, summary, parameters.missing, head, aligned)


def discriminant(
    release: Release, schema: DatasetSchema, known: list[int], parameters: FedCGSParameters
) -> tuple[LinearHead, NoiseInWeights]:
    """The head over the classes ``known``, whose released counts are beyond their noise; and how much of it noise explains.

    Without noise the covariance is shrunk by OAS; with noise as the parameters say. Second
    moments are pooled over all classes, so those that a left-out class put in stay in, as a little extra spread. Where records
    are scored clipped, noise in the intercepts outweighs their scores: the class means are shrunk towards the centre by the
    share of noise in the weights (James and Stein 1961).
    """
    values, std = release.values, release.noise_std
    counts, sums = values["counts"][known], values["sums"][known]
    second = moments.symmetric(values["squares"], values.get("products", np.zeros(0)))
    number = float(counts.sum())
    if parameters.covariance == "total":
        within = moments.within_covariance(
            counts.sum(keepdims=True), sums.sum(axis=0)[None], second, std["sums"] * len(sums) ** 0.5
        )
    else:
        within = moments.within_covariance(counts, sums, second, std["sums"])
    if std["squares"] > 0 and parameters.shrinkage == "ridge":
        ridge = noise_ridge(std["squares"], len(within), number)
        covariance = shrink_ridge(within, max(ridge, 1e-4 * max(float(np.trace(within)), 0.0) / len(within)))
    elif std["squares"] > 0:
        covariance = moments.shrink_noised(within, number, std["squares"], std.get("products", 0.0))
    else:
        covariance = _regular(moments.shrink_oas(within, number))
    priors = counts if parameters.priors == "released" else np.ones(len(known))
    classes = tuple(schema.classes[index] for index in known)
    if parameters.head == "ridge":
        ridge = float(parameters.ridge or noise_ridge(std["squares"], sums.shape[1], 1.0) or 1.0)
        total = moments.within_covariance(counts.sum(keepdims=True), sums.sum(axis=0)[None], second, 0.0)
        penalised = shrink_ridge(total, ridge / number)
        return indicator_ridge(counts, sums, second, ridge, classes), noise_in_weights(counts, sums, penalised, std["sums"])
    means, noise = sums / counts[:, None], noise_in_weights(counts, sums, covariance, std["sums"])
    if parameters.scored == "clipped":
        means = (1.0 - noise.share) * means
    return lda_head(means, covariance, priors, classes), noise


def _regular(covariance: Floats) -> Floats:
    """The covariance with eigenvalues that a discriminant can divide by: a feature without spread leaves a singular one."""
    return moments.project_psd(covariance, floor=max(1e-9 * float(np.trace(covariance)) / len(covariance), 1e-12))


def columns_plan(inputs: Inputs, share: float) -> TaskPlan:
    """Every number's count, sum and square by class, and how many of each class have each category."""
    schema, label = inputs.schema, "" if inputs.schema.label is None else inputs.schema.label.column
    numbers = tuple(column.name for column in schema.columns if not isinstance(column, CategoryColumn))
    asked = [QueryRequest(kind="compare", name=NUMBERS, over=numbers, by=(label,))] if numbers else []
    for place, column in enumerate(schema.columns):
        if isinstance(column, CategoryColumn):
            asked.append(QueryRequest(kind="count", name=f"category-{place}", over=(column.name,), by=(label,)))
    columns = Columns(schema)
    tables = weigh(expand(asked, columns), (), columns, largest=inputs.sites * schema.max_records)
    return TaskPlan(COLUMNS, "tables", tables, share=share)


def released_means(release: Release, study: Study) -> Floats:
    """The noised means (d,) of the features of all classes together, within their bounds."""
    found: dict[str, Floats] = {}
    for question in questions_of(AgreedStudy(study).task(COLUMNS).task):
        name = question.query.name
        if isinstance(question, Means):
            count, absent = release.values[f"{name}/records"].sum(), release.values.get(f"{name}/absent")
            std = release.noise_std[f"{name}/records"]
            for place, column in enumerate(question.query.over):
                own = float(count)
                if absent is not None and column in question.open:
                    own -= float(absent[:, question.open.index(column)].sum())
                total = float(release.values[f"{name}/sum"][:, place].sum())
                found[column] = np.array([np.clip(total / max(own, std, 1e-9), -1.0, 1.0)])
        else:
            table = release.values[f"{name}/table"].sum(axis=0)
            whole = max(float(table.sum()), release.noise_std[f"{name}/table"], 1e-9)
            found[question.query.over[0]] = np.clip(table / whole, 0.0, 1.0)
    return np.concatenate([found[column.name] for column in study.data.columns])


def class_tables(release: Release, study: Study) -> dict[str, list[dict[str, Any]]]:
    """Each number's count, mean and deviation by class with a test of equal means, and counts and shares of categories."""
    found: dict[str, list[dict[str, Any]]] = {}
    for question in questions_of(AgreedStudy(study).task(COLUMNS).task):
        part = ReleasedPart(question.query, release.values, release.noise_std)
        if isinstance(question, Means):
            found[NUMBERS] = list(question.answer(part))
            found[TESTS] = list(question.tests(part))
        else:
            (column,), (label,) = question.query.over, question.query.by
            # One table of all columns: the level of each row under one heading.
            for row in question.answer(part):
                about = {label: row[label], "column": column, "level": row[column]}
                found.setdefault(SHARES, []).append(about | {name: row[name] for name in ("count", "share") if name in row})
    return found


def joined(release: Release, maps: Sequence[AffineMap] | None = None) -> Release:
    """The joint release that a per-site one of class moments adds up to, with second moments pooled over the classes.

    A site's are mapped by :func:`veilsum_aggregation.alignment.mapped_moments`. The noise of a mean or a central moment is
    turned by A alone: stated are root mean squares over the entries, sqrt(sum_k g_k) for sums and sqrt(sum_k g_k^2) for
    second moments, with the gains g_k = tr(A_k A_k^T) / m.

    Args:
        release: of class moments per site, with pooled second moments.
        maps: one a site, in the cohort's order; None for none.
    """
    sites = site_blocks(release)
    width = release.values["sums"].shape[-1]
    own = [AffineMap.identity(width)] * len(sites) if maps is None else maps
    moved = [mapped_moments(blocks, mapped) for blocks, mapped in zip(sites, own, strict=True)]
    gains = np.array([float(blocks.pop("gain")[0]) for blocks in moved])
    values: dict[str, Floats] = {name: np.asarray(sum(blocks[name] for blocks in moved)) for name in moved[0]}
    factors = {"counts": len(own) ** 0.5, "sums": float(gains.sum()) ** 0.5}
    both = float(np.sum(gains**2)) ** 0.5
    noise = {name: std * factors.get(name, both) for name, std in release.noise_std.items()}
    return replace(release, values=values, noise_std=noise)


def mapped_at_sites(kept: Release, aligned: Release) -> Release:
    """A release of the task "aligned-moments", with the noise that it holds: that of what the sites kept, as turned by maps.

    Args:
        kept: the sum of what the sites kept, whose noise is known.
        aligned: the sum after each site's map; its block ``gain`` is the sum of g_k as in :func:`joined`.
    """
    values = {name: array for name, array in aligned.values.items() if name != "gain"}
    gain = float(aligned.values["gain"][0]) / len(aligned.cohort)
    noise = {name: std for name, std in mapped_noise(kept.noise_std, gain).items() if name in values}
    return replace(aligned, values=values, noise_std=noise)
