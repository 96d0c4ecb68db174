"""A coordinator's certificate that ends in the middle of a round, by a stepped clock: no round is lost that need not be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.renewing import renew, renew_with_new_key, sign_again
from veilsum.local.federation import LocalChannel
from veilsum_node.errors import RefusalCode, VeilsumError
from veilsum_node.identity import Role, load_credentials
from veilsum_node.identity.files import replace_file
from veilsum_node.identity.renewal import DAY
from veilsum_node.identity.tls import CERTIFICATE_FILE
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_privacy.ledger import Kind
from veilsum_proto import federation_pb2 as pb

NAMES = "abc"
LEFT = 60
"""Seconds that the certificate has when the study begins."""

ASKED = [pb.DIRECTIVE_KIND_CHECK, pb.DIRECTIVE_KIND_CONSENT]
RENEWED: dict[str, Callable[..., bytes]] = {"certified anew": renew, "with a new key": renew_with_new_key}


class Federation:
    """A federation whose coordinator's certificate ends when the first site, or the last, is first told something."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bed = make_bed(directory, make_data(NAMES, 20, 2))
        self.results = directory / "results"
        party, clock = self.bed.kit.coordinator, self.bed.clock
        short = sign_again(self.bed.kit, party, clock, days=1, at=clock() - DAY + LEFT)
        replace_file(party.identity / CERTIFICATE_FILE, short)
        self.present()
        self.ended = self.bed.hub.credentials.identity.not_after
        assert clock() <= self.ended <= clock() + LEFT
        self.told: list[tuple[str, pb.DirectiveKind.ValueType]] = []
        self.refused: list[RefusalCode] = []
        self._patch = monkeypatch

    def present(self) -> None:
        """Let the coordinator prove itself with what lies in its folder."""
        self.bed.hub.renew(load_credentials(self.bed.kit.coordinator.identity, self.bed.clock(), Role.COORDINATOR))

    def run(self, ends: Callable[[str, pb.DirectiveKind.ValueType], bool], then: Callable[[LocalChannel], None]) -> None:
        handle, refuse = ParticipantCore.handle, LocalChannel.refuse
        past: list[str] = []

        def handled(core: ParticipantCore, directive: pb.Directive, channel: Any) -> None:
            if not past and ends(core.site.name, directive.kind):
                past.append(core.site.name)
                self.bed.clock.now = self.ended + 1
                then(channel)
            self.told.append((core.site.name, directive.kind))
            handle(core, directive, channel)

        def refused(channel: LocalChannel, study: bytes, codes: Any, *rest: Any) -> None:
            self.refused.extend(codes)
            refuse(channel, study, codes, *rest)

        self._patch.setattr(ParticipantCore, "handle", handled)
        self._patch.setattr(LocalChannel, "refuse", refused)
        study = self.bed.compile(make_request(schema_of(2), min_cohort=3))
        try:
            self.bed.local.run(study, self.bed.analyst, self.results)
        finally:
            assert past
            for site in self.bed.sites.values():
                site.ledger.verify(authority=site.credentials.authority)

    def kinds(self, kind: Kind) -> set[int]:
        return {len(site.ledger.entries(kind=kind)) for site in self.bed.sites.values()}


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    return Federation(tmp_path, monkeypatch)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("noticed", [False, True])
@pytest.mark.parametrize("renewed", RENEWED)
@pytest.mark.parametrize("who", ["a", "c"])
@pytest.mark.parametrize("before", ASKED, ids=pb.DirectiveKind.Name)
def test_no_round_is_lost_by_a_certificate_that_ends(
    federation: Federation, before: pb.DirectiveKind.ValueType, who: str, renewed: str, noticed: bool
) -> None:
    """Renewed in time, with the same key or another one; ``noticed``: the session has met the new one already."""
    bed: TestBed = federation.bed

    def then(channel: LocalChannel) -> None:
        RENEWED[renewed](bed.kit, bed.kit.coordinator, bed.clock)
        federation.present()
        if noticed:
            channel.greet_again()

    federation.run(lambda name, kind: (name, kind) == (who, before), then)
    assert federation.refused == []
    charges = federation.kinds(Kind.CHARGE)
    assert len(charges) == 1
    assert charges != {0}
    assert federation.kinds(Kind.FREE) == {0}


@pytest.mark.parametrize("before", ASKED, ids=pb.DirectiveKind.Name)
def test_nobody_pays_by_a_certificate_that_has_ended(federation: Federation, before: pb.DirectiveKind.ValueType) -> None:
    with pytest.raises(VeilsumError):
        federation.run(lambda _, kind: kind == before, lambda _: None)
    assert set(federation.refused) == {RefusalCode.RECEIPT}
    assert federation.kinds(Kind.CHARGE) == {0}
