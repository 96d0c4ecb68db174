"""A federation in one process whose coordinator may show each member something else than it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from support.federation import TestBed, open_test_site
from veilsum.local.federation import LocalChannel, LocalFederation, as_directive
from veilsum_node.errors import HostileInput
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.boundary.front import Directive, DirectiveKind, ObjectKind
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.store.followed import FollowedRow, find_followed
from veilsum_privacy.ledger import Kind
from veilsum_privacy.securesum.context import broadcast_digest
from veilsum_proto import federation_pb2 as pb

Show = Callable[[str, ObjectKind, int, bytes], bytes]
"""What a member is shown in place of an object: of member, kind, round, and the object."""


class ShowingChannel(LocalChannel):
    """Shows what a test decides."""

    def __init__(self, between: Between, name: str) -> None:
        super().__init__(between.hub, name)
        self._between, self._member = between, name

    def fetch(self, kind: ObjectKind, study: bytes, number: int = 0, attempt: int = 0) -> bytes:
        self._between.fetched.append((self._member, kind, number))
        if kind is ObjectKind.BROADCAST and (self._member, number) in self._between.models:
            return self._between.models[self._member, number]
        data = super().fetch(kind, study, number, attempt)
        return self._between.show(self._member, kind, number, data)


class Between(LocalFederation):
    """Members that are told what a hub tells them, but for what a test changes on the way.

    Attributes:
        show: changes what is fetched, or came along.
        models: by member and round, broadcasts in place of the true ones, named by the assignment that the member gets.
        before: called ahead of every directive, with member and directive.
        fetched: who fetched what, of which round.
        refused: codes by member.
    """

    def __init__(self, bed: TestBed, enclosing: str = "ac") -> None:
        super().__init__(bed.hub, {name: ParticipantCore(site) for name, site in bed.sites.items()}, bed.clock)
        self.bed, self._enclosing = bed, enclosing
        self.show: Show = lambda name, kind, number, data: data
        self.models: dict[tuple[str, int], bytes] = {}
        self.before: Callable[[str, Directive], None] = lambda name, directive: None
        self.fetched: list[tuple[str, ObjectKind, int]] = []

    @property
    def refused(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for status in self.hub.shown.all():
            for refusal in status.refusals:
                found.setdefault(refusal.participant, set()).add(refusal.code)
        return found

    def step(self) -> bool:
        worked = False
        for name in list(self.cores):
            for sent in self.hub.directives(name):
                worked = True
                try:
                    directive = self._changed(name, sent)
                    self.before(name, directive)
                    self.cores[name].handle(directive, ShowingChannel(self, name))
                except HostileInput:
                    continue
        before = self.hub.changes
        self.hub.tick()
        return worked or self.hub.changes != before

    def _changed(self, name: str, sent: pb.Directive) -> Directive:
        directive = as_directive(self.hub.objects.enclose(name, sent) if name in self._enclosing else sent)
        if directive.kind != DirectiveKind.CONTRIBUTE:
            return directive
        if directive.object is not None and directive.round > 1:
            shown = self.show(name, ObjectKind.RELEASE, directive.round - 1, directive.object)
            directive = replace(directive, object=shown)
        if (model := self.models.get((name, directive.round))) is not None:
            directive = replace(directive, assignment=replace(directive.assignment, broadcast=broadcast_digest(model)))
        return directive

    def reopen(self, name: str) -> None:
        """A site's process ends, and another one begins on its files."""
        site = self.bed.sites[name]
        site.database.close()
        self.bed.sites[name] = open_test_site(site.config, self.bed.clock, SYSTEM_RANDOM)
        self.cores[name] = ParticipantCore(self.bed.sites[name])
        self.hub.connect(name, self.bed.sites[name].nonce)

    def followed(self, name: str, key: bytes) -> FollowedRow | None:
        """What a site keeps of a study's model."""
        with self.bed.sites[name].database.reading() as connection:
            return find_followed(connection, key)

    def charged(self, name: str) -> int:
        """How many charges a site's ledger holds."""
        return len(self.bed.sites[name].ledger.entries(kind=Kind.CHARGE))

    def reserved(self, name: str) -> int:
        """How many reservations a site's ledger holds."""
        return len(self.bed.sites[name].ledger.entries(kind=Kind.RESERVE))
