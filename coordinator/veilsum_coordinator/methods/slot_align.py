"""The method "slot-align": the alignment of sites' features alone, for those who build their own models on aligned features.

After SLOT-Align, one-shot alignment of distributions by optimal transport. One release, per site or kept at the sites; no
training. Other methods put the same in front with ``[parameters.alignment]``.
"""

from typing import Any

from veilsum_coordinator.parts.alignment import (
    AlignmentParameters,
    align,
    alignment_plans,
    resolve_alignment,
    study_application,
    study_arrays,
)
from veilsum_coordinator.parts.base import FeatureRules, Inputs, Method, TaskPlan, resolved_clip
from veilsum_coordinator.parts.federation import Federation
from veilsum_node.errors import ConfigurationError
from veilsum_privacy.results.result import Result


class SlotAlignParameters(FeatureRules):
    """Parameters, all public.

    Attributes:
        alignment: what is aligned to what; its ``share`` is of no meaning here.
    """

    alignment: AlignmentParameters = AlignmentParameters()


class SlotAlign(Method[SlotAlignParameters]):
    """The alignment's rounds, and nothing after them."""

    name = "slot-align"

    def resolve(self, parameters: SlotAlignParameters, inputs: Inputs) -> SlotAlignParameters:
        alignment = resolve_alignment(parameters.alignment, inputs)
        return parameters.model_copy(update={"clip": resolved_clip(parameters.clip, inputs), "alignment": alignment})

    def declare(self, parameters: SlotAlignParameters, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if parameters.clip is None:
            raise ConfigurationError("The method slot-align needs the defaults of its parameters resolved.")
        return alignment_plans(parameters.alignment, inputs, parameters.clip, parameters.missing)

    def compute(self, federation: Federation) -> Result:
        parameters = SlotAlignParameters.model_validate(federation.study.parameters)
        aligned = align(federation, parameters.alignment)
        summary: dict[str, Any] = {"cohort": len(aligned.release.cohort), **aligned.summary}
        if "not_estimable" in aligned.summary:
            return Result(self.name, summary)
        return Result(
            self.name,
            summary,
            arrays=study_arrays(federation, aligned),
            application=study_application(federation, parameters.missing, aligned),
        )
