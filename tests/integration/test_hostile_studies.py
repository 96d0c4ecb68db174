"""A hostile coordinator, analyst or authority before the first round: studies, rosters, seeds, policies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate

from support.federation import make_request, schema_of
from support.hostile import NAMES, Adversary, HostileChannel, altered, make_adversary
from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.errors import RefusalCode
from veilsum_node.identity import Authority, Label, Role, SigningKey, load_credentials, new_key_and_csr, verify_certificate
from veilsum_privacy.securesum.boxes import Box, BoxKey, seal
from veilsum_privacy.securesum.roster import Enrolment, enrol
from veilsum_privacy.study.schema import CategoryColumn
from veilsum_privacy.study.study import parse_study, study_digest
from veilsum_privacy.tasks import build_task
from veilsum_proto import federation_pb2 as pb


@pytest.fixture
def attack(tmp_path: Path) -> Iterator[Adversary]:
    adversary = make_adversary(tmp_path)
    yield adversary
    adversary.check_ledgers()


def _set_policy(attack: Adversary, name: str, **changes: Any) -> None:
    site = attack.bed.sites[name]
    site.config = site.config.model_copy(update={"policy": site.config.policy.model_copy(update=changes)})


def _impostor(attack: Adversary, name: str, key: bytes) -> Enrolment:
    """An enrolment under ``name`` with a key that the federation's own authority certified."""
    authority = Authority.load(attack.bed.kit.authority, attack.bed.clock)
    pem, csr = new_key_and_csr(name, Role.PARTICIPANT)
    signed = authority.sign(csr, role=Role.PARTICIPANT, name=name, replace=True)
    certificate = load_pem_x509_certificate(signed).public_bytes(Encoding.DER)
    identity = verify_certificate(certificate, authority.certificate, attack.bed.clock(), Role.PARTICIPANT)
    return enrol(key, identity, BoxKey.generate().public, SigningKey.from_pem(pem))


# -- the study -------------------------------------------------------------------------------------------------------------


def test_study_is_enrolled_once(attack: Adversary) -> None:
    """A signed study replayed: while it runs the same enrolment comes back, after its end nothing does."""
    first = attack.enrol("a").values[1]
    assert attack.enrol("a").values[1] == first
    assert attack.tell("a", pb.DIRECTIVE_KIND_END).call == "confirm"
    assert attack.enrol("a").refused is RefusalCode.STUDY_REPLAYED
    row = attack.row("a")
    assert (row.status, row.box_key) == ("ended", None)


def test_study_with_changed_defaults_has_no_signature(attack: Adversary) -> None:
    """Whatever the coordinator changes in the signed bytes, S for one site included, is another digest and unsigned."""
    good = pb.StudyObject.FromString(attack.study_object())
    smaller = altered(attack.study, task__variance=attack.study.tasks[0].variance // 4, privacy__epsilon=500.0)
    changed = pb.StudyObject(study=smaller.to_bytes(), signature=good.signature, certificate=good.certificate)
    assert attack.enrol("a", changed.SerializeToString()).refused is RefusalCode.STUDY_INVALID  # another digest announced
    attack.use(smaller)
    assert attack.enrol("a", changed.SerializeToString()).refused is RefusalCode.STUDY_SIGNATURE
    assert attack.enrol("a", attack.study_object(label=Label.RECEIPT)).refused is RefusalCode.STUDY_SIGNATURE


def test_study_that_leaves_something_to_defaults(attack: Adversary) -> None:
    """A default that a later version could change under the signature is not a study."""
    value = parse_canonical(attack.study.to_bytes(), what="study")
    del value["data"]["missing"]
    data = canonical(value)
    attack.key = study_digest(data)
    assert attack.enrol("a", attack.study_object(data)).refused is RefusalCode.STUDY_INVALID


def test_study_of_another_federation_coordinator_or_time(attack: Adversary) -> None:
    """A study replayed to other parties or at another time."""
    study = attack.study
    cases = [
        (altered(study, federation="0" * 64), RefusalCode.STUDY_REPLAYED),
        (altered(study, coordinator="other"), RefusalCode.STUDY_REPLAYED),
        (altered(study, created=1, expires=attack.bed.clock.now), RefusalCode.STUDY_EXPIRED),
        (altered(study, created=attack.bed.clock.now + 301), RefusalCode.STUDY_EXPIRED),
    ]
    for case, code in cases:
        attack.use(case)
        assert attack.enrol("a").refused is code
    attack.use(study)
    attack.channels["a"] = HostileChannel("other")
    assert attack.enrol("a").refused is RefusalCode.STUDY_REPLAYED


def test_study_signed_by_no_analyst(attack: Adversary) -> None:
    """A participant's or an impostor's signature under a study is none."""
    signed = attack.bed.signed(attack.study, attack.bed.sites["b"].credentials)
    assert attack.enrol("a", signed.SerializeToString()).refused is RefusalCode.STUDY_SIGNATURE
    assert attack.enrol("a", b"\xff\xff").refused is RefusalCode.INTERNAL
    assert attack.enrol("a", b"").call == "refuse"


def test_study_that_understates_its_epsilon(attack: Adversary) -> None:
    """The epsilon that a study states is the analyst's word; the site computes it, at its budget's delta."""
    study = attack.study
    assert study.privacy.epsilon is not None
    _set_policy(attack, "a", max_epsilon=60.0)
    loud = altered(study, task__variance=study.tasks[0].variance // 10_000)
    both = (RefusalCode.STUDY_INVALID, RefusalCode.EPSILON)
    cases = [
        (loud, both),
        (altered(study, privacy__epsilon=None), both[:1]),
        (altered(loud, privacy__epsilon=1e9), both[1:]),
        (altered(study, task__releases=100_000, privacy__epsilon=1e9), both[1:]),
        (altered(study, task__releases=10_000), both),
    ]
    for case, codes in cases:
        attack.use(case)
        assert attack.enrol("a").codes == codes
    attack.use(study)
    assert attack.enrol("a").call == "enrol"


def test_study_with_a_generous_delta(attack: Adversary) -> None:
    """A delta near 1/2 would make any noise look cheap: the budget's delta counts."""
    _set_policy(attack, "a", max_epsilon=1.0)
    study = attack.bed.compile(make_request(schema_of(2), epsilon=1.0, delta=0.4, min_cohort=2))
    attack.use(study)
    assert attack.enrol("a").refused is RefusalCode.EPSILON


def test_unequal_weights_undeclared_disclosures_and_no_colluders(attack: Adversary) -> None:
    """Weights (1, 0, 0, 0) show one site; k = 0 lets a site subtract its own share; per-site is another task's disclosure."""
    attack.use(altered(attack.study, weights={"a": 1, "b": 0, "c": 0, "d": 0}))
    assert attack.enrol("a").refused is RefusalCode.WEIGHTS
    attack.use(altered(attack.study, weights=dict.fromkeys(NAMES, 1), task__disclosure="per-site"))
    assert attack.enrol("a").refused is RefusalCode.DISCLOSURE
    value = parse_canonical(attack.study.to_bytes(), what="study")
    value["privacy"]["assumed_colluders"] = 0
    data = canonical(value)
    attack.key = study_digest(data)
    assert attack.enrol("a", attack.study_object(data)).refused is RefusalCode.STUDY_INVALID


def test_study_that_would_exhaust_memory_or_names_no_task(attack: Adversary) -> None:
    """A small file can declare a vector of 10^9 values, or a task that there is not: refused before anything is computed."""
    plain = attack.bed.compile(make_request(schema_of(2, max_records=10), method="fedcgs", min_cohort=2))
    wide = tuple(CategoryColumn(name=f"x{i}", categories=tuple(map(str, range(256)))) for i in range(200))
    schema = schema_of(1, max_records=10).model_copy(update={"columns": wide})
    value = parse_canonical(plain.to_bytes(), what="study")
    value["data"] = schema.model_dump(mode="json")
    attack.use(parse_study(canonical(value)))
    declared = attack.study.tasks[0]
    assert build_task(declared.task, declared.parameters, attack.study.data).layout().size > 10**9
    assert attack.enrol("a").refused is RefusalCode.STUDY_INVALID
    attack.use(altered(plain, task__task="no-such-task"))
    assert attack.enrol("a").refused is RefusalCode.TASK
    _set_policy(attack, "a", tasks=("no-such-task",))
    assert attack.enrol("a").refused is RefusalCode.STUDY_INVALID


def test_method_that_asks_for_another_task(attack: Adversary) -> None:
    """A method's name binds nothing: what may be computed is the policy's list of tasks."""
    _set_policy(attack, "a", methods=(attack.study.method,), tasks=("class-moments",))
    assert attack.enrol("a").refused is RefusalCode.TASK


def test_study_that_never_ends(attack: Adversary) -> None:
    """A study's keys must not lie at a site for longer than its policy says."""
    attack.use(altered(attack.study, expires=attack.study.created + 366 * 86400 + 1))
    assert attack.enrol("a").refused is RefusalCode.STUDY_INVALID


def test_analyst_that_is_no_longer_accepted(attack: Adversary) -> None:
    """Taking an analyst out of the policy stops its running studies too."""
    attack.set_up()
    _set_policy(attack, "a", analysts=())
    assert attack.assign("a", attack.assignment()).refused is RefusalCode.ANALYST
    assert attack.kinds("a")["reserve"] == 0


def test_policy_before_enrolment(attack: Adversary) -> None:
    """The site's own word on analysts, methods, noise and cost."""
    cases: list[tuple[dict[str, Any], RefusalCode]] = [
        ({"analysts": ("other",)}, RefusalCode.ANALYST),
        ({"analysts": ()}, RefusalCode.ANALYST),
        ({"methods": ("fedcgs",)}, RefusalCode.METHOD),
        ({"noise": ("local",)}, RefusalCode.NOISE),
        ({"max_epsilon": 0.1}, RefusalCode.EPSILON),
        ({"disclosures": ()}, RefusalCode.DISCLOSURE),
        ({"cohort_difference": ("strict",)}, RefusalCode.COHORT_CHANGED),
        ({"units": ("subject",)}, RefusalCode.UNIT),
        ({"min_cohort": 5}, RefusalCode.COHORT_SMALL),
    ]
    kept = attack.bed.sites["a"].config
    for change, code in cases:
        attack.bed.sites["a"].config = kept
        _set_policy(attack, "a", **change)
        assert attack.enrol("a").refused is code, change
    attack.bed.sites["a"].config = kept.model_copy(update={"datasets": {}})
    assert attack.enrol("a").refused is RefusalCode.DATASET
    attack.nothing_said_but_codes("a")


# -- the roster ------------------------------------------------------------------------------------------------------------


def test_certified_impostor_named_like_a_trusted_peer(attack: Adversary) -> None:
    """The authority certifies another key under a pinned name: the pin is the key, not the name."""
    enrolments = attack.enrolments()
    forged = [*enrolments[:1], _impostor(attack, "b", attack.key), *enrolments[2:]]
    assert attack.show_roster("a", forged).refused is RefusalCode.COHORT_TRUST
    assert attack.row("a").roster is None
    assert attack.show_roster("a", enrolments).call == "seal"


def test_invented_sites_count_for_no_noise(attack: Adversary) -> None:
    """Members that nobody pinned, however well certified, do not carry the noise that the plan calls honest."""
    trusted = attack.bed.sites["a"].config.policy.trusted
    attack.set_up()
    _set_policy(attack, "a", trusted={name: trusted[name] for name in ("a", "b")})
    assert attack.assign("a", attack.assignment()).refused is RefusalCode.NOISE
    assert attack.assign("a", attack.assignment(("a", "b"))).call == "upload"  # n = 2: each bears the noise alone
    assert attack.assign("b", attack.assignment(attempt=2)).call == "upload"


def test_own_enrolment_replaced_or_missing(attack: Adversary) -> None:
    """The roster must hold this site's very enrolment; another under its name is the coordinator's."""
    enrolments = attack.enrolments()
    again = enrol(
        attack.key,
        attack.bed.sites["a"].credentials.identity,
        BoxKey.generate().public,
        attack.bed.sites["a"].credentials.signing_key,
    )
    assert attack.show_roster("a", [again, *enrolments[1:]]).refused is RefusalCode.ROSTER
    assert attack.show_roster("a", enrolments[1:]).refused is RefusalCode.ROSTER


def test_rosters_out_of_order_doubled_small_or_altered(attack: Adversary) -> None:
    """Every participant verifies the whole roster itself."""
    a, b, c, d = attack.enrolments()
    foreign = enrol(
        bytes(32), attack.bed.sites["b"].credentials.identity, BoxKey.generate().public,
        attack.bed.sites["b"].credentials.signing_key,
    )  # fmt: skip
    for roster in ([b, a, c, d], [a, a, b, c], [a], [], [a, foreign, c, d], [a, replace(b, signature=c.signature), c, d],
                   [a, replace(b, certificate=c.certificate), c, d], [a, replace(b, body=c.body), c, d]):  # fmt: skip
        assert attack.show_roster("a", roster).refused is RefusalCode.ROSTER
    assert attack.row("a").seeds is None


def test_swapped_key_and_second_roster(attack: Adversary) -> None:
    """A second roster is refused; a roster with another valid key of one member, shown to some, splits seeds and contexts."""
    enrolments = attack.enrolments()
    d = attack.bed.sites["d"].credentials
    other = enrol(attack.key, d.identity, BoxKey.generate().public, d.signing_key)
    assert attack.show_roster("a", enrolments).call == "seal"
    assert attack.show_roster("a", [*enrolments[:3], other]).refused is RefusalCode.ROSTER
    box = attack.show_roster("b", [*enrolments[:3], other]).values[1][0]
    made = attack.show_roster("c", enrolments)
    assert made.call == "seal"
    assert attack.show_boxes("c", [box]).refused is RefusalCode.KEYS


def test_cohort_policy_holds_on_the_roster(attack: Adversary) -> None:
    """min_cohort and min_trusted are the site's, whatever the study says."""
    enrolments = attack.enrolments()
    _set_policy(attack, "a", min_cohort=5)
    assert attack.show_roster("a", enrolments).refused is RefusalCode.COHORT_SMALL
    _set_policy(attack, "a", min_cohort=2, min_trusted=5)
    assert attack.show_roster("a", enrolments).refused is RefusalCode.COHORT_TRUST


# -- boxes -----------------------------------------------------------------------------------------------------------------


def _share(attack: Adversary, sender: str, recipient: str, secret: bytes) -> Box:
    site = attack.bed.sites[sender]
    roster = attack.spied(sender).roster(site)
    return seal(
        secret,
        study=attack.key,
        roster=roster.digest,
        sender=sender,
        recipient=recipient,
        public=roster.member(recipient).public,
        key=site.credentials.signing_key,
    )


def _for(boxes: list[Box], name: str) -> list[Box]:
    return [box for box in boxes if box.recipient == name]


def test_boxes_re_signed_replayed_or_misdirected(attack: Adversary) -> None:
    """HPKE does not say who sealed: info and signature name the sender, so a box passes for nobody else's."""
    made = attack.boxes(attack.enrolments())
    shares = {box.sender + box.recipient: box for box in made}
    ab, ac, bc, ca, dc = (shares[pair] for pair in ("ab", "ac", "bc", "ca", "dc"))
    d = attack.bed.sites["d"].credentials.signing_key
    stolen = replace(ac, sender="b", signature=attack.bed.sites["b"].credentials.signing_key.sign(Label.SEEDS, b"box"))
    wrong = {
        "under another name": [stolen, ac],
        "another's signature": [replace(ac, signature=d.sign(Label.SEEDS, ac.ciphertext)), bc],
        "to another": [replace(ab, recipient="c"), bc],
        "still addressed to another": [ab, bc],
        "twice": [ac, ac],
        "altered": [replace(ac, ciphertext=ac.ciphertext[:-1] + bytes([ac.ciphertext[-1] ^ 1])), bc],
        "stranger": [replace(ac, sender="x"), bc],
        "its own, sent back": [replace(ca, sender="a", recipient="c"), bc],
        "its own": [_share(attack, "c", "c", bytes(32)), bc],
        "short share": [_share(attack, "a", "c", bytes(31)), bc],
    }
    for what, boxes in wrong.items():
        assert attack.show_boxes("c", boxes).refused is RefusalCode.KEYS, what
    assert attack.show_boxes("c", [ac, bc, dc]).call == "ready"


def test_a_share_of_an_earlier_study_or_roster_does_not_open(attack: Adversary) -> None:
    """The same sites, keys and coordinator: what was sealed for one study, or one roster, is for no other."""
    earlier = _for(attack.boxes(attack.enrolments()), "c")
    attack.use(altered(attack.study, nonce="1" * 32))
    first = attack.enrolments()
    made = _for(attack.boxes(first), "c")
    (old,) = (box for box in earlier if box.sender == "b")
    mixed = [old if box.sender == "b" else box for box in made]
    assert attack.show_boxes("c", mixed).refused is RefusalCode.KEYS
    b = attack.bed.sites["b"]
    roster = attack.spied("b").roster(b)
    other = seal(bytes(32), study=attack.key, roster=bytes(32), sender="b", recipient="c",
                 public=roster.member("c").public, key=b.credentials.signing_key)  # fmt: skip
    assert attack.show_boxes("c", [other if box.sender == "b" else box for box in made]).refused is RefusalCode.KEYS
    assert attack.show_boxes("c", made).call == "ready"


def test_shares_are_drawn_once_and_both_sides_mix_the_same_seed(attack: Adversary) -> None:
    """Asked again, after a restart too, a site seals the same shares; where a box is missing it gets no seed."""
    enrolments = attack.enrolments()
    first = attack.boxes(enrolments)
    shares = {name: attack.spied(name).shares for name in NAMES}
    attack.reopen("b")
    again = attack.boxes(enrolments)
    assert {name: attack.spied(name).shares for name in NAMES} == shares
    for name in NAMES:  # from the first time and the second, as they come
        mine = [first[place] if place % 2 else box for place, box in enumerate(again) if box.recipient == name]
        lost = [box for box in mine if (box.sender, box.recipient) != ("d", "a")]
        assert attack.show_boxes(name, lost).call == "ready"
    seeds = {name: attack.spied(name).seeds for name in NAMES}
    assert set(seeds["a"]) == {"b", "c"}
    for one, other in itertools.combinations(NAMES, 2):
        if (one, other) != ("a", "d"):
            assert seeds[one][other] == seeds[other][one]
            assert seeds[one][other] not in (shares[one][other], shares[other][one])
    assert len({seed for mine in seeds.values() for seed in mine.values()}) == 6
    for cohort, name, answer in ((NAMES, "a", "refuse"), (NAMES, "d", "upload"), (("a", "b", "c"), "a", "upload")):
        attempt = 1 + len(attack.channels[name].said)
        assert attack.assign(name, attack.assignment(cohort, attempt, attempt)).call == answer


def test_member_without_a_box_is_in_no_cohort(attack: Adversary) -> None:
    """Who sealed nothing for this site shares no mask with it."""
    made = attack.boxes(attack.enrolments())
    assert attack.show_boxes("c", [box for box in _for(made, "c") if box.sender in ("a", "d")]).call == "ready"
    assert attack.assign("c", attack.assignment()).refused is RefusalCode.KEYS
    assert attack.assign("c", attack.assignment(("a", "c", "d"))).call == "upload"


def test_keys_before_roster_and_rounds_before_keys(attack: Adversary) -> None:
    """Steps out of order get a code and leave no trace."""
    assert attack.show_boxes("a", []).refused is RefusalCode.CLOSED
    attack.enrolments()
    assert attack.show_boxes("a", []).refused is RefusalCode.ROSTER
    assert attack.assign("a", attack.assignment()).refused is RefusalCode.KEYS


# -- policy after enrolment ------------------------------------------------------------------------------------------------


def test_policy_made_stricter_between_assignment_and_consent(attack: Adversary) -> None:
    """The policy that holds is the one at consent: nothing is charged, and what it names is not opened."""
    attack.set_up()
    attack.collect()
    answers = attack.answers()
    kept = attack.bed.sites["a"].config
    cases: list[tuple[dict[str, Any], set[RefusalCode]]] = [
        ({"min_cohort": 5}, {RefusalCode.COHORT_SMALL}),
        ({"min_trusted": 5}, {RefusalCode.COHORT_TRUST}),
        ({"trusted": {**kept.policy.trusted, "b": "0" * 64}}, {RefusalCode.COHORT_TRUST, RefusalCode.NOISE}),
        ({"trusted": {}}, {RefusalCode.NOISE}),
        ({"noise": ("local",)}, {RefusalCode.NOISE}),
        ({"methods": ()}, {RefusalCode.METHOD}),
        ({"max_epsilon": 0.1}, {RefusalCode.EPSILON}),
        ({"disclosures": ()}, {RefusalCode.DISCLOSURE}),
        ({"cohort_difference": ("strict",)}, {RefusalCode.COHORT_CHANGED}),
        ({"units": ("subject",)}, {RefusalCode.UNIT}),
        ({"methods": (), "max_epsilon": 0.1, "min_cohort": 5},
         {RefusalCode.METHOD, RefusalCode.EPSILON, RefusalCode.COHORT_SMALL}),
    ]  # fmt: skip
    for change, codes in cases:
        attack.bed.sites["a"].config = kept
        _set_policy(attack, "a", **change)
        assert set(attack.ask_consent("a", answers).codes) == codes, change
        assert attack.charges("a") == 0
    attack.bed.sites["a"].config = kept
    assert attack.ask_consent("a", answers).call == "consent"


def test_expired_certificate_of_a_member(attack: Adversary) -> None:
    """Certificates are judged at the present time: a roster that was good is none once a certificate has run out."""
    for name in attack.bed.sites:
        _set_policy(attack, name, study_days=3660)
    attack.use(altered(attack.study, expires=attack.study.created + 3660 * 86400))
    attack.set_up()
    attack.bed.clock.now += 3654 * 86400
    assert attack.assign("a", attack.assignment()).refused is RefusalCode.ROSTER
    assert attack.kinds("a")["reserve"] == 0


def with_a_certificate_of_a_day(attack: Adversary) -> None:
    """Set up a study of ten days in which the certificate of d runs out after one."""
    kit, clock = attack.bed.kit, attack.bed.clock
    (party,) = (party for party in kit.participants if party.name == "d")
    short = Authority.load(kit.authority, clock).sign(party.request.read_bytes(), role=Role.PARTICIPANT, name="d", days=1)
    (party.identity / "certificate.pem").write_bytes(short)
    attack.bed.sites["d"].credentials = load_credentials(party.identity, clock())
    attack.use(altered(attack.study, expires=attack.study.created + 10 * 86400))
    attack.set_up()


def test_certificates_are_judged_at_consent_too(attack: Adversary) -> None:
    """One that ran out between upload and consent, in an attempt whose own time is not over."""
    clock, site = attack.bed.clock, attack.bed.sites["a"]
    with_a_certificate_of_a_day(attack)
    attack.collect()
    answers, began = attack.answers(), clock.now
    site.elapsed = lambda: began
    clock.now += 2 * 86400
    assert attack.ask_consent("a", answers).refused is RefusalCode.ROSTER
    assert attack.charges("a") == 0
    clock.now = began
    assert attack.ask_consent("a", answers).call == "consent"


def test_expired_certificate_of_a_member_that_has_left(attack: Adversary) -> None:
    """A roster stays good when someone outside the cohort lets its certificate run out; within the cohort it does not."""
    with_a_certificate_of_a_day(attack)
    attack.bed.clock.now += 2 * 86400
    assert attack.assign("a", attack.assignment()).refused is RefusalCode.ROSTER
    assert attack.kinds("a")["reserve"] == 0
    assert attack.assign("a", attack.assignment("abc", attempt=2)).call == "upload"
    assert attack.kinds("a")["reserve"] == 1
