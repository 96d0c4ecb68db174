"""The text by which somebody decides on a study: what it asks and why, what it costs this site, how long it waits.

It is made of the signed study, the site's ledger and its configuration; no record is read for it. An entry ``approval`` or
``decline`` of the ledger holds the SHA-256 of the text as it was when somebody decided.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from veilsum_node.identity.certificate import moment
from veilsum_node.phrases import counted, listed
from veilsum_privacy.accounting.deltas import delta_warning
from veilsum_privacy.dossier.figures import cost, meaning
from veilsum_privacy.study.study import STATEMENTS, Study

if TYPE_CHECKING:
    from veilsum_participant.protocol.decisions import Waiting

UNSTATED = "not stated"

_UNSEEN = re.compile(
    r"(?<=[^ ]) {2,}|[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Spaces that fill a terminal's line, so that what follows looks like the next one; and signs that count as printable and that
nobody sees: fillers, selectors of variants, Braille without a dot."""


def shown_text(item: Waiting) -> str:
    """What somebody is shown who decides: lines of plain text, the last of which ends."""
    return "".join(f"{_one_line(line)}\n" for line in _lines(item))


def _one_line(text: str) -> str:
    """A text in which nothing steers, fills a line or is not seen: names of columns and conditions are the analyst's."""
    seen = _UNSEEN.sub(lambda found: _escaped(found[0]), text)
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in seen)


def _escaped(text: str) -> str:
    return "".join(f"\\u{ord(letter):04x}" for letter in text)


def _lines(item: Waiting) -> Iterator[str]:
    study = item.study
    yield f"Study {study.name} by {item.analyst}"
    yield f"  ID: {item.digest.hex()}"
    yield f"  signed {moment(study.created)}, ends {moment(study.expires)} at the latest"
    yield ""
    yield "In the analyst's words, which nobody has checked"
    for stated in STATEMENTS:
        yield f"  {stated.replace('_', ' ')}: {study.statements.get(stated, UNSTATED)}"
    yield ""
    yield "What it asks"
    for name, text in _asked(item, study).items():
        yield f"  {name}: {text}"
    yield ""
    yield "What it costs here"
    yield from (f"  {line}" for line in _costs(item))
    yield ""
    yield "Compared with the newest earlier study of this analyst on this dataset"
    yield from (f"  {line}" for line in _differences(item))
    yield ""
    yield "Until when"
    yield from (f"  {line}" for line in _waits(item))
    if item.obstacle is not None:
        yield ""
        yield "What speaks against it now"
        for reason in item.obstacle.reasons:
            yield f"  {reason.code.value}: {reason.message} {reason.advice}".rstrip()


def _asked(item: Waiting, study: Study) -> dict[str, str]:
    """What a study asks; by its tasks as well, since its method is a name that its analyst gave it."""
    return {**item.asked(study), "tasks": listed([*dict.fromkeys(task.task for task in study.tasks)])}


def _costs(item: Waiting) -> Iterator[str]:
    privacy = item.study.privacy
    if privacy.noise == "none":
        yield "It is released without noise: the sums are exact, and nothing bounds what they tell of a person."
    else:
        yield f"It costs epsilon {cost(item.epsilon)} for one {privacy.unit}, over the whole study."
    if item.before is None or item.after is None or item.delta is None:
        yield "The dataset has no budget here: nothing can be released from it."
        return
    before = "nothing is spent or promised before it"
    if item.before > 0:
        before = f"with what is spent and promised before it, {_hundred(item.before, item.delta)}"
    yield (
        "Somebody who knows everything about all others, and guesses whether one given"
        f" {privacy.unit} is among the records, is right at most {_hundred(item.after, item.delta)} times in 100 once it is"
        f" done; {before}; by tossing a coin, 50."
    )
    yield f"Spent and promised: epsilon {cost(item.before)} before, {cost(item.after)} after, at delta {item.delta:g}."
    if item.leaves is not None:
        more = f"{item.leaves:,} or more" if item.leaves >= 1000 else f"{item.leaves:,}"
        yield f"After it the budget bears {more} such {'study' if item.leaves == 1 else 'studies'}."
    elif privacy.noise != "none":
        yield "The budget has no bound."
    if warning := delta_warning(item.study):
        yield warning


def _hundred(epsilon: float, delta: float) -> int:
    """How often in 100 a guess is right, rounded up."""
    return min(100, -int(-100 * meaning(epsilon, delta).guess // 1))


def _differences(item: Waiting) -> Iterator[str]:
    if item.earlier is None:
        yield "There is none."
        return
    old, new = _asked(item, item.earlier), _asked(item, item.study)
    old |= {name.replace("_", " "): text for name, text in item.earlier.statements.items()}
    new |= {name.replace("_", " "): text for name, text in item.study.statements.items()}
    yield f"{item.earlier.name}, signed {moment(item.earlier.created)}"
    changed = [name for name in dict.fromkeys([*new, *old]) if old.get(name) != new.get(name)]
    for name in changed:
        yield f"{name}: was {old.get(name, UNSTATED)}; is {new.get(name, UNSTATED)}"
    if not changed:
        yield "It asks the same again."


def _waits(item: Waiting) -> Iterator[str]:
    if item.approved_by:
        yield f"It is {item.state}; approved by {listed(item.approved_by)}."
    if item.needs > 1:
        yield f"It needs the approval of {counted(item.needs, 'person', 'people')}."
    if item.deadline is None:
        yield "The coordinator did not say how long it waits for an answer; by default that is an hour."
    else:
        yield f"The coordinator waits for an answer until {moment(item.deadline)}; then it goes on without this site."
