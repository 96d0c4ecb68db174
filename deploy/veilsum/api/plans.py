"""A plan as a scientist reads it."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from veilsum.api.frames import pandas_frame
from veilsum.api.notebook import fields_html
from veilsum.drafts import absences
from veilsum.exports import table_html
from veilsum.plan import USUAL_BUDGET, StudyPlan, Verdict
from veilsum_privacy.dossier.figures import cost as rounded_up


@dataclass(frozen=True)
class Plan:
    """What a study would tell and cost, before anything is signed.

    Attributes:
        details: the plan in full.
        away: invited sites that are not connected now.
        left_out: sites that are not connected now and not asked, since the study names no participants.
    """

    details: StudyPlan
    away: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """``worth it``, ``weak``, ``not worth its epsilon``, or that the study is exact and has no guarantee.

        ``not forecast`` where sites train, or in many steps.
        """
        return self.details.verdict.value

    @property
    def epsilon(self) -> float | None:
        """What it costs each site; None without noise."""
        return self.details.cost.epsilon

    @property
    def delta(self) -> float:
        """Delta of the guarantee."""
        return self.details.cost.delta

    @property
    def participants(self) -> tuple[str, ...]:
        """The sites that would take part."""
        return tuple(self.details.study.participants)

    @property
    def notes(self) -> tuple[str, ...]:
        """What else should be known before it is run."""
        return (*absences(self.away, self.left_out), *self.details.notes)

    def rows(self) -> list[dict[str, Any]]:
        """One row a figure of the result: what it is measured against, its 95% half-width, and its chance of being told."""
        return [item.to_json() for part in self.details.parts for item in part.forecasts]

    def parts(self) -> list[dict[str, Any]]:
        """One row a part of the result: the share of its size that a typical half-width is, its chance of being told, and the
        outlook."""
        return [part.to_json() for part in self.details.parts]

    def to_pandas(self) -> Any:
        """:meth:`rows` as a pandas frame.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        return pandas_frame(self.rows())

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values, as ``veilsum study plan --json`` prints it."""
        return self.details.to_json()

    def summary(self) -> str:
        """The plan in a few lines."""
        lines = [f"{name}: {value}" for name, value in self._fields().items()]
        lines += [f"  {part['part']}: {part['outlook']}, within {_known(part)}" for part in self.parts()]
        return "\n".join([*lines, *self.notes])

    def _fields(self) -> dict[str, str]:
        cost = self.details.cost
        asked = "none: exact sums, without any guarantee"
        wanted: dict[str, str] = {}
        blame, studies = self.details.blame, self.details.affordable
        if cost.epsilon is not None and self.details.verdict is not Verdict.NOT_FORECAST:
            wanted["for an error of " + f"{self.details.error:.0%}"] = _wanted(self.details)
        if cost.epsilon is not None:
            asked = f"epsilon {rounded_up(cost.epsilon)} at delta {cost.delta:g} for one {cost.unit}"
        return {
            "study": self.details.study.name,
            "sites": ", ".join(self.participants),
            "guarantee": asked,
            "verdict": self.verdict,
            **({"because of": ", ".join(part.name for part in blame[:3])} if blame else {}),
            **wanted,
            **({} if studies is None else {f"a budget of {USUAL_BUDGET:g} bears": f"{studies} such studies"}),
        }

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return f"<Plan of {self.details.study.name!r}: {self.verdict}>"

    def _repr_html_(self) -> str:
        rows = [
            {
                "part": part["part"],
                "figures": part["quantities"],
                "half of them within": _known(part),
                "outlook": part["outlook"],
            }
            for part in self.parts()
        ]
        notes = "".join(f"<p>{note}</p>" for note in map(html.escape, self.notes))
        return fields_html(self._fields()) + (table_html(rows) if rows else "") + notes


def _wanted(plan: StudyPlan) -> str:
    return "out of reach" if plan.error_epsilon is None else f"epsilon {rounded_up(plan.error_epsilon)} would do"


def _known(part: Mapping[str, Any]) -> str:
    share = "no bound" if part["typical_share"] is None else f"{part['typical_share']:.2g} of the size"
    return share if part["told"] == 1.0 else f"{share}, told in {part['told']:.0%} of cases"
