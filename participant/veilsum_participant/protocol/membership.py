"""Joining and leaving a study: enrolment, roster, sealed boxes, erasure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from veilsum_node.errors import HostileInput, Refusal, RefusalCode
from veilsum_node.identity.certificate import moment
from veilsum_node.process.memory import give_back_memory
from veilsum_node.telemetry.logs import about
from veilsum_participant.protocol.open_studies import check_directory, load_open_study, verified_roster
from veilsum_participant.protocol.policy import analyst_faults, mask_faults, member_faults, refuse
from veilsum_participant.site import LOG, Site
from veilsum_participant.store.attempts import tally
from veilsum_participant.store.followed import drop_followed
from veilsum_participant.store.kept import drop_states
from veilsum_participant.store.pending import find_pending, pending_studies
from veilsum_participant.store.studies import (
    TAKING_PART,
    StudyState,
    add_study,
    change_study,
    dump_enrolments,
    find_study,
    load_enrolments,
    open_studies,
    signed_studies,
)
from veilsum_privacy.securesum.boxes import SHARE_BYTES, Box, BoxKey, pair_seed, seal, unseal
from veilsum_privacy.securesum.graph import mask_graph
from veilsum_privacy.securesum.roster import Enrolment, Roster, enrol
from veilsum_privacy.study.study import parse_study

if TYPE_CHECKING:
    from veilsum_participant.protocol.approval import SignedStudy

FORGET_SECONDS = 3600
"""How long after the site erased what it need not hold it looks again."""


class Membership:
    """The part of the protocol before the first round and after the last."""

    def __init__(self, site: Site) -> None:
        self._site, self._forget_from = site, 0

    def on_study(self, key: bytes, signed: SignedStudy) -> Enrolment | None:
        """Hold a signed study against certificates, clock, policy and budget, and enrol; the same study again gets the same
        answer.

        Args:
            key: the digest under which the coordinator announced it.

        Returns:
            The enrolment; None while the study waits for the operator's word.

        Raises:
            Refusal: with everything that speaks against it; a signed study's refusal stands in the ledger then.
        """
        from veilsum_participant.protocol.approval import decide, verify_study

        site = self._site
        agreed, analyst = verify_study(site, key, signed)
        try:
            site.check_ledger()
        except Refusal:
            refuse(analyst_faults(analyst, site.config.policy))  # who is not accepted hears only that
            raise
        study = agreed.study
        box_key = BoxKey.generate()
        enrolment = enrol(key, site.credentials.identity, box_key.public, site.credentials.signing_key)
        with site.database.transaction() as connection:
            row = find_study(connection, key)
            if row is not None and row.status in TAKING_PART:
                return load_enrolments(row.enrolment)[0]
            if row is not None or tally(connection, key, 0).counts:
                raise Refusal(RefusalCode.STUDY_REPLAYED, "This study was enrolled before and is over; a digest serves once.")
            refusal = decide(connection, site, signed, agreed, analyst)
            if refusal is None and find_pending(connection, key) is not None:
                return None
            if refusal is None:
                add_study(
                    connection,
                    digest=key,
                    status=StudyState.ENROLLED,
                    study=signed.data,
                    analyst=analyst,
                    enrolment=dump_enrolments([enrolment]),
                    box_key=box_key.to_bytes(),
                )
        if refusal is not None:
            raise refusal
        LOG.info(
            "enrolled in study %s (%s)", study.name, key.hex()[:12], extra=about("enrolled", study=study.name, digest=key)
        )
        ends = site.credentials.identity.not_after
        if ends < study.expires:  # the roster keeps it, and members check it at every consent
            LOG.warning(
                "study %s uses this site's certificate that expires on %s; it can take part until then, and renewing will"
                " not extend it: renew before enrolling in a long study",
                study.name,
                moment(ends),
                extra=about("certificate", study=study.name, digest=key),
            )
        return enrolment

    def on_roster(self, key: bytes, enrolments: Sequence[Enrolment]) -> list[Box]:
        """Verify the roster, once and for all, and seal to each neighbour a share of the pair's seed.

        Shares are drawn once, and durable before they are sealed.

        Raises:
            Refusal: the roster is invalid, misses this site, differs from the one before, or breaks the policy.
        """
        site = self._site
        with site.database.transaction() as connection:
            opened = load_open_study(connection, site, key)
            dumped, now = dump_enrolments(list(enrolments)), site.clock()
            if opened.row.roster not in (None, dumped):
                raise Refusal(RefusalCode.ROSTER, "The coordinator sent a second, different roster.")
            try:
                roster = verified_roster(dumped, opened.row.study, key, site.credentials.authority, now)
            except HostileInput as error:
                raise Refusal(RefusalCode.ROSTER, error.message) from error
            own = load_enrolments(opened.row.enrolment)[0]
            if [member.enrolment for member in roster.members].count(own) != 1:
                raise Refusal(RefusalCode.ROSTER, "The roster does not hold this site's own enrolment exactly once.")
            check_directory(site)
            graph, policy = mask_graph(roster, opened.study.privacy), site.config.policy
            masks = mask_faults(graph, roster.members, opened.study, policy, site.name)
            refuse([*member_faults(roster.members, opened.study, policy, site.name), *masks])
            shares, neighbours = opened.shares, graph.neighbours(site.name)
            for name in neighbours:
                shares.setdefault(name, site.random.bytes(SHARE_BYTES))
            values: dict[str, object] = {"roster": dumped, "shares": _dump_secrets(shares)}
            if opened.row.roster is None:
                values["roster_time"] = now
            change_study(connection, key, **values)
        sealed = partial(seal, study=key, roster=roster.digest, sender=site.name, key=site.credentials.signing_key)
        to = [member for member in roster.members if member.name in neighbours]
        return [sealed(shares[member.name], recipient=member.name, public=member.public) for member in to]

    def on_boxes(self, key: bytes, boxes: Sequence[Box]) -> None:
        """Open the boxes for this site, with the others' shares of the pairs' seeds, and mix the seeds.

        A neighbour whose box is missing can be in no cohort with this site.

        Raises:
            Refusal: a box does not verify, comes twice or before this site drew its own share.
        """
        site = self._site
        with site.database.transaction() as connection:
            opened = load_open_study(connection, site, key)
            if opened.row.status == StudyState.READY:
                return
            roster = opened.roster(site)
            try:
                theirs = self._open(boxes, roster, key, opened.box_key)
                if not set(theirs) <= set(own := opened.shares):
                    raise HostileInput("A share of a pair's seed came before this site had drawn its own.")
                seeds = {
                    name: pair_seed({site.name: own[name], name: share}, study=key, roster=roster.digest)
                    for name, share in theirs.items()
                }
            except HostileInput as error:
                raise Refusal(RefusalCode.KEYS, error.message) from error
            change_study(connection, key, status=StudyState.READY, seeds=_dump_secrets(seeds))

    def leave(self, key: bytes, status: StudyState) -> None:
        """End this site's part: give up open attempts, erase key, seeds and payloads; what waited is dropped. Idempotent."""
        from veilsum_participant.protocol.approval import UNDECIDED, end_waiting
        from veilsum_participant.protocol.contributions import give_up_open

        site = self._site
        with site.database.transaction() as connection:
            waiting = find_pending(connection, key)
            if waiting is not None and waiting.state in UNDECIDED:
                end_waiting(connection, site, waiting, "the coordinator ended it")
            row = find_study(connection, key)
            if row is None or row.status not in TAKING_PART:
                return
            give_up_open(connection, site, key)
            drop_states(connection, key)
            drop_followed(connection, key)
            change_study(connection, key, status=status, box_key=None, shares=None, seeds=None, roster=None)
        site.forget(key)
        give_back_memory()
        site.database.scrub()

    def expire(self) -> None:
        """Leave studies whose time is over, and drop those that waited for too long."""
        now = self._site.clock()
        with self._site.database.reading() as connection:
            held, waiting = signed_studies(connection), pending_studies(connection)
        over = [row for row in waiting if now >= parse_study(row.study).expires]
        if over:
            from veilsum_participant.protocol.approval import end_waiting

            with self._site.database.transaction() as connection:
                for row in over:
                    end_waiting(connection, self._site, row, "its time ran out")
        for digest, study in held:
            if now >= parse_study(study).expires:
                self.leave(digest, StudyState.ENDED)
        self._forget(now)

    def _forget(self, now: int) -> None:
        """Once an hour: erase what the site need not hold any longer."""
        days = self._site.config.retention
        if (days.studies is None and days.kept_vectors is None) or now < self._forget_from:
            return
        from veilsum_participant.store.retirement import forget_ended  # for sites that name days

        with self._site.database.transaction() as connection:
            done = forget_ended(connection, now, studies=days.studies, kept_vectors=days.kept_vectors)
        self._forget_from = now + FORGET_SECONDS
        if done.studies or done.vectors:
            self._site.database.scrub()
            LOG.info("%d signed studies and %d kept vectors were erased (retention)", done.studies, done.vectors)

    def _open(self, boxes: Sequence[Box], roster: Roster, key: bytes, box_key: BoxKey) -> dict[str, bytes]:
        shares, own = dict[str, bytes](), self._site.name
        for box in boxes:
            member = roster.member(box.sender)
            secret = unseal(box, study=key, roster=roster.digest, sender=member.identity, recipient=own, key=box_key)
            if box.sender == own or box.sender in shares or len(secret) != SHARE_BYTES:
                raise HostileInput("A share of a pair's seed comes twice, from this site itself, or with the wrong length.")
            shares[box.sender] = secret
        return shares


def leave_former_studies(site: Site) -> None:
    """Leave the open studies of an earlier protocol, whose keys went when the state was brought up to date: no party of this
    version takes part in their sums. What was charged stays charged."""
    with site.database.reading() as connection:
        former = [bytes(row.digest) for row in open_studies(connection) if row.box_key is None]
    for key in former:
        Membership(site).leave(key, StudyState.LEFT)
        LOG.warning(
            "study %s was begun under an earlier version and is left; its analyst can submit it anew",
            key.hex()[:12],
            extra=about(digest=key),
        )


def _dump_secrets(secrets: Mapping[str, bytes]) -> bytes:
    return json.dumps({name: secret.hex() for name, secret in secrets.items()}).encode()
