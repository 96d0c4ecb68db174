"""The dossier's annexes are documents beside this module, in which the site's own figures are filled in.

``nist.md.j2`` answers what NIST SP 800-226 asks of a claim of differential privacy. "Guidelines for Evaluating Differential
Privacy Guarantees" (Near, Darais, Lefkovitz, Howarth, March 2025) orders what has to be looked at as a pyramid: the
guarantee on top, below it algorithms, utility and bias, deployment, security, and what was exposed when data were collected;
each level rests on those below. ``protection.md.j2`` drafts what data protection law asks for, ``retention.md.j2`` says what
is kept how long. An answer says what this site's records or this software's design show, and no more; what neither shows is
said to be unanswered. Nothing here judges.

In a document ``#`` begins a level or part and ``##`` a question, behind whose ``|`` stand how far it is answered and by what.
Paragraphs, apart by empty lines, are the answer, and ``>`` is what a person has to add.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, cast

from veilsum_node.phrases import counted, listed
from veilsum_privacy.dossier import figures

if TYPE_CHECKING:
    from jinja2 import Environment

Answered = Literal["answered", "partly answered", "not answered by this tool"]
Source = Literal["ledger", "policy", "studies", "audit", "software"]

Figures = Mapping[str, Any]
"""Plain data of a dossier, or a part of it."""

FILTERS = ("cost", "remaining", "exact", "small", "one_in", "of_hundred", "times", "grouped", "ratio", "moment", "day")
"""Functions of :mod:`.figures` by which documents word numbers."""

_LINE, _MARK = (
    "\ue000",
    "\ue001",
)  # stand for line ends of a value, and before a mark that it begins with

_UNITS = {"record": "one record", "subject": "all records of one person", "site": "all records of this site"}
_NOISES = {"none": "without noise", "kept": "post-processing of what was released", "training": "noise in every step"}


@dataclass(frozen=True)
class GuidelineItem:
    """One item of the guideline."""

    level: str
    topic: str
    answer: tuple[str, ...]
    answered: Answered
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Answer:
    """A question of a document.

    Attributes:
        part: that it stands in.
        head: its topic, and what stands behind each ``|``.
        answer: paragraphs; may be empty.
        gap: what a person has to add; empty if nothing.
    """

    part: str
    head: tuple[str, ...]
    answer: tuple[str, ...]
    gap: str


def annex(dossier: Figures) -> tuple[GuidelineItem, ...]:
    """All items, in order, for a dossier in plain data (with ``policy`` and ``audits``)."""
    audits = _audits(dossier)
    rows = _rows(dossier)
    used = sorted({(row["mechanism"], row["noise"]) for row in rows})
    rules: dict[str, list[str]] = {"gaussian": [], "strict": [], "standard": []}
    for item in dossier["populations"]:
        rules[item["adaptive"]].append(item["name"])
    sampled, policy = [row["sampling_rate"] for row in rows if row["sampling_rate"] < 1], dossier["policy"]
    values = {
        "kinds": [
            "exact sums without noise" if noise == "none" else f"{mechanism} ({_NOISES.get(noise, noise + ' noise')})"
            for mechanism, noise in used
        ],
        "noises": sorted({row["noise"] for row in rows} - {"kept", "none"}),
        "rules": rules,
        "sampled": len(sampled),
        "rates": [figures.exact(rate) for rate in sorted(set(sampled))],
        "audits": audits,
        "measured": any(row["finding"] is not None for audit in dossier["audits"] for row in audit["rows"]),
        "peers": 0 if policy is None else len(set(policy["trusted"]) - {dossier["site"]}),
        "refused": len(dossier["refusals"]) + sum(len(item["refusals"]) for item in dossier["populations"]),
    }
    found = []
    for each in answers("nist.md.j2", dossier, values):
        topic, answered, sources = each.head
        named = tuple(cast(Source, source) for source in sources.split(", ") if source)
        found.append(GuidelineItem(each.part, topic, each.answer, cast(Answered, answered), named))
    return tuple(found)


def answers(name: str, dossier: Figures, values: Figures) -> Iterator[Answer]:
    """The questions of a document, with a site's figures filled in.

    Nothing that a ledger, a study or a setting says can begin a paragraph, a question or a part.

    Args:
        name: of the document.
        dossier: plain data.
        values: further ones that the document names.
    """
    rows = _rows(dossier)
    known = {
        "dossier": dossier,
        "populations": dossier["populations"],
        "policy": dossier.get("policy"),
        "rows": rows,
        "exact": sum(row["mechanism"] == "none" for row in rows),
        "verified": "The ledger verifies (part 6)." if dossier["proof"]["valid"] else "The ledger DOES NOT VERIFY (part 6).",
    }
    text = documents().get_template(name).render(_kept_together({**known, **values}))
    for part in f"\n{text}".split("\n# ")[1:]:
        title, *questions = part.split("\n## ")
        for question in questions:
            head, _, body = question.partition("\n")
            body, _, gap = f"\n{body}".partition("\n> ")
            paragraphs, lines = list[str](), list[str]()
            for line in [*body.split("\n"), ""]:
                if line.strip():
                    lines.append(line.strip(" "))
                elif lines:
                    paragraphs.append(_as_given(" ".join(lines)))
                    lines = []
            told = tuple(each.strip() for each in _as_given(head).split("|"))
            yield Answer(_as_given(title.strip()), told, tuple(paragraphs), " ".join(gap.split()))


@cache
def documents() -> "Environment":
    """What fills in the documents of this package, from wherever it is installed."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # which a site that runs studies does without

    found = Environment(undefined=StrictUndefined, loader=FunctionLoader(source))  # noqa: S701  no markup; pages escape it
    found.filters |= {name: getattr(figures, name) for name in FILTERS}
    found.globals |= {"counted": counted, "listed": listed, "units": _units}
    return found


def source(name: str) -> str:
    """A document, template or style sheet of this package."""
    return files("veilsum_privacy.dossier").joinpath(name).read_text(encoding="utf-8")


def _units(population: Figures) -> str:
    """The protected units of a population in words; empty where nothing was asked for."""
    return listed([_UNITS.get(unit, unit) for unit in population["units"]], "or")


def _rows(dossier: Figures) -> list[Figures]:
    """The releases of all populations."""
    return [row for item in dossier["populations"] for row in item["releases"]]


def _kept_together(value: Any) -> Any:
    """Plain data whose texts are no structure of the document that they are put into."""
    if isinstance(value, str):
        text = value.replace("\n", _LINE)
        return _MARK + text if text.startswith(("#", ">")) else text
    if isinstance(value, Mapping):
        return {key: _kept_together(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_kept_together(item) for item in value)
    return value


def _as_given(text: str) -> str:
    return text.replace(_LINE, "\n").replace(_MARK, "")


def audit_answers(dossier: Figures) -> tuple[str, ...]:
    """What audits at the site found, in words."""
    (found,) = (item.answer for item in annex(dossier) if item.topic == "Empirical audit")
    return found


def _audits(dossier: Figures) -> Sequence[str]:
    said = []
    for audit in dossier["audits"]:
        measured = sum(row["finding"] is not None for row in audit["rows"])
        faulty = sum(row["flagged"] for row in audit["rows"])
        about = f"of the study {audit['name']}" if audit["study"] else "that the policy allowed"
        among = counted(len(audit["rows"]), "release")
        verdict = f"FOUND FAULTS in {faulty} of {among}" if audit["flagged"] else f"found no fault in {measured} of {among}"
        unknown = "" if measured == len(audit["rows"]) else f"; {len(audit['rows']) - measured} could not be measured"
        said.append(
            f"The audit of {figures.moment(audit['made'])} UTC, signed by this site, with canaries among made-up records:"
            f" {verdict} {about}{unknown} (part 8)."
        )
    return said
