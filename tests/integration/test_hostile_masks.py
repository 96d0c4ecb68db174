"""A hostile coordinator of a study whose members share masks with neighbours only: cohorts, rosters and boxes against that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.federation import make_bed, make_data, make_request, schema_of
from support.hostile import Adversary, add_mod, make_adversary, subtract_mod, uniformity
from support.randomness import RARE
from veilsum_node.errors import RefusalCode, VeilsumError
from veilsum_privacy.securesum import graph
from veilsum_privacy.securesum.boxes import SHARE_BYTES, seal
from veilsum_privacy.securesum.graph import mask_graph
from veilsum_privacy.securesum.key_shares import self_masks
from veilsum_privacy.securesum.streams import StreamPurpose, WordStream

SIX = tuple("abcdef")


def _share_with_two(patch: pytest.MonkeyPatch) -> None:
    """Let members sit in a circle that two can take apart, however few they are."""
    patch.setattr(graph, "reach", lambda *_: 1)
    patch.setattr(graph, "SEPARATORS", 2)


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Adversary]:
    _share_with_two(monkeypatch)
    adversary = make_adversary(tmp_path, SIX)
    yield adversary
    adversary.check_ledgers()


def _around(ring: Adversary, name: str) -> list[str]:
    """All members in the circle's order, beginning with one."""
    roster = ring.spied(name).roster(ring.bed.sites[name])
    circle = mask_graph(roster, ring.study.privacy).circle
    place = circle.index(name)
    return [*circle[place:], *circle[:place]]


def _set_policy(ring: Adversary, name: str, **changes: Any) -> None:
    site = ring.bed.sites[name]
    site.config = site.config.model_copy(update={"policy": site.config.policy.model_copy(update=changes)})


def _pins(ring: Adversary, *names: str) -> dict[str, str]:
    return {name: ring.bed.policy.trusted[name] for name in names}


def test_boxes_go_to_neighbours_and_from_no_one_else(ring: Adversary) -> None:
    made = ring.boxes(ring.enrolments())
    for name in SIX:
        _, after, *_, before = _around(ring, name)
        assert {box.recipient for box in made if box.sender == name} == {after, before}
    _, after, other, *_, before = _around(ring, "b")
    roster = ring.spied("b").roster(ring.bed.sites["b"])
    stranger = seal(
        bytes(SHARE_BYTES),
        study=ring.key,
        roster=roster.digest,
        sender=other,
        recipient="b",
        public=roster.member("b").public,
        key=ring.bed.sites[other].credentials.signing_key,
    )
    honest = [box for box in made if box.recipient == "b"]
    assert ring.show_boxes("b", [*honest, stranger]).refused is RefusalCode.KEYS
    assert ring.show_boxes("b", honest).call == "ready"
    assert set(ring.spied("b").seeds) == {after, before}


def _unmasked(ring: Adversary, names: list[str], colluders: list[str]) -> NDArray[np.uint64]:
    """The sum of some members' key shares, without their self-masks and without all masks that colluders share with them."""
    bound, context = ring.share_bound(), ring.context()
    rest = ring.total(names=names).share
    rest = subtract_mod(
        rest, self_masks(StreamPurpose.SELF_KEY, context, [ring.consent_of(name) for name in names], len(rest), bound), bound
    )
    for name in names:
        for colluder in set(colluders) & set(ring.spied(name).seeds):
            seed = ring.spied(colluder).seeds[name]
            mask = WordStream(seed, StreamPurpose.PAIR_KEY, context, bound=bound).take(len(rest))
            rest = add_mod(rest, mask, bound) if colluder < name else subtract_mod(rest, mask, bound)
    return rest


def test_colluders_learn_the_sum_of_those_whom_masks_still_connect(ring: Adversary) -> None:
    """All consents given away: one colluder learns the others' whole sum alone, two the two sums between them."""
    ring.set_up()
    ring.collect(SIX)
    modulus = ring.share_bound()
    one, two, three, four, five, six = _around(ring, "a")
    hidden = ([two], [two, three], [two, three, four, five], [two, six], [two, four, five, six])
    for names in hidden:
        assert uniformity(_unmasked(ring, names, [one]), modulus) > RARE
    assert uniformity(_unmasked(ring, [two, three, four, five, six], [one]), modulus) < 1e-12
    for names in ([two], [three], [five], [two, three, five]):
        assert uniformity(_unmasked(ring, names, [one, four]), modulus) > RARE
    assert uniformity(_unmasked(ring, [two, three], [one, four]), modulus) < 1e-12  # what two can do, as is said
    assert uniformity(_unmasked(ring, [five, six], [one, four]), modulus) < 1e-12


def test_a_cohort_that_one_member_could_take_apart_gets_nothing(ring: Adversary) -> None:
    ring.set_up()
    for names in (SIX[1:], SIX[:3], SIX[:-1]):
        for name in names:
            assert ring.assign(name, ring.assignment(names)).refused is RefusalCode.MASKS
            assert ring.attempt_row(name) is None
    assert [ring.kinds(name)["reserve"] for name in SIX] == [0] * 6
    ring.collect(SIX)
    assert ring.finish().shape == (ring.plan().encoding.size,)


def test_a_site_keeps_to_complete_studies(ring: Adversary) -> None:
    _set_policy(ring, "a", masks=("complete",))
    assert ring.enrol("a").refused is RefusalCode.MASKS
    _set_policy(ring, "a", masks=("complete", "neighbours"))
    made = ring.enrolments()
    _set_policy(ring, "a", masks=("complete",))
    assert ring.show_roster("a", made).refused is RefusalCode.MASKS
    _set_policy(ring, "a", masks=("complete", "neighbours"))
    boxes = ring.boxes(made)
    for name in SIX:
        assert ring.show_boxes(name, [box for box in boxes if box.recipient == name]).call == "ready"
    ring.collect(SIX)
    answers = ring.answers()
    _set_policy(ring, "a", masks=("complete",))
    assert ring.ask_consent("a", answers).refused is RefusalCode.MASKS  # stricter since the assignment
    assert ring.charges("a") == 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("pinned", "accepted"),
    [
        (lambda around: around[1:], True),
        (lambda around: around[1:5], False),  # the sixth, invented perhaps, leaves five that one can take apart
        (lambda around: [around[1], around[5]], False),
        (lambda around: around[3:4], False),
        (lambda around: around[1:2], True),  # two that share a mask: no third can come between them
    ],
)
def test_trusted_members_are_held_together_by_masks_of_their_own(
    ring: Adversary, pinned: Callable[[list[str]], list[str]], accepted: bool
) -> None:
    made = ring.enrolments()
    assert ring.show_roster("b", made).call == "seal"
    names = pinned(_around(ring, "b"))
    _set_policy(ring, "b", trusted=_pins(ring, *names), min_trusted=2)
    again = ring.show_roster("b", made)
    assert again.call == "seal" if accepted else again.refused is RefusalCode.MASKS


def test_masks_of_trusted_members_are_judged_at_consent_too(ring: Adversary) -> None:
    """Pins that were taken back since the upload leave trusted members whose masks one other could take apart."""
    ring.set_up()
    ring.collect(SIX)
    answers, kept = ring.answers(), ring.bed.sites["b"].config
    _set_policy(ring, "b", trusted=_pins(ring, *_around(ring, "b")[1:5]), min_trusted=2)
    assert RefusalCode.MASKS in ring.ask_consent("b", answers).codes
    assert ring.charges("b") == 0
    ring.bed.sites["b"].config = kept
    assert ring.ask_consent("b", answers).call == "consent"


def test_a_study_of_neighbours_sums_what_a_complete_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the coordinator asks nobody for a cohort that the sites would refuse."""
    bed = make_bed(tmp_path, make_data(SIX, 20))
    request = make_request(schema_of(2), epsilon=None, min_cohort=2)

    def run() -> tuple[Any, Any]:
        local = bed.local
        federation = local.prepare(local.submit(bed.compile(request), bed.analyst))
        return federation, federation.sum("statistics").values

    _, complete = run()
    with monkeypatch.context() as patch:
        _share_with_two(patch)
        _, shared = run()
        federation = bed.local.prepare(bed.local.submit(bed.compile(request), bed.analyst))
        with pytest.raises(VeilsumError, match="take their masks apart"):
            federation.sum("statistics", members=SIX[1:])
    assert shared.keys() == complete.keys()
    assert all(np.array_equal(shared[name], complete[name]) for name in complete)
    assert all(site.ledger.verify(authority=site.credentials.authority) for site in bed.sites.values())
