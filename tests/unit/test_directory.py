"""The federation's directory: what the authority signs, what a reader refuses, and what a site takes its pins from."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.certificates import DAY, NOW
from support.federation import make_bed, make_data
from veilsum_node.canonical import canonical
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse, Refusal, RefusalCode, StateError
from veilsum_node.identity import Authority, Label, Role, SigningKey, load_credentials
from veilsum_node.identity.directory import Directory, changes, check_words, merkle_root, parse_directory
from veilsum_node.identity.files import read_file
from veilsum_node.identity.kit import Kit, make_kit
from veilsum_node.identity.provision import install, prepare
from veilsum_node.identity.record import Issued
from veilsum_node.identity.releases import sign_directory
from veilsum_node.identity.tls import Credentials
from veilsum_participant.protocol.approval import SignedStudy, verify_study
from veilsum_participant.protocol.open_studies import check_directory
from veilsum_participant.session.client import open_site
from veilsum_participant.settings.config import ParticipantConfig, Policy
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.directory import confirm, confirmed_path, given_directory, with_pins
from veilsum_participant.telemetry.metrics import SiteMetrics
from veilsum_privacy.study.study import study_digest

LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
"""Test vectors of Certificate Transparency's own implementations."""


@dataclass
class World:
    """A federation whose clock the test moves."""

    kit: Kit
    directory: Path
    time: int = NOW

    @property
    def authority(self) -> Authority:
        return Authority.load(self.kit.authority, lambda: self.time)

    def credentials(self, name: str) -> Credentials:
        return load_credentials(self.kit.directory / "participants" / name / "identity", self.time, Role.PARTICIPANT)

    def sign(self, **options: Any) -> Directory:
        """The next directory, written where the sites look for it."""
        opened = self.authority
        self.path.write_bytes(sign_directory(opened, **options))
        return self.read()

    def read(self) -> Directory:
        return parse_directory(self.path.read_bytes(), self.authority.certificate)

    @property
    def path(self) -> Path:
        return self.directory / "directory.json"

    def config(self, name: str, **policy: Any) -> ParticipantConfig:
        place = self.kit.directory / "participants" / name
        return ParticipantConfig(
            coordinator="localhost:1",
            identity=place / "identity",
            state=place / "participant.db",
            datasets={"records": DatasetConfig(path=place / "records.csv")},
            policy=Policy(directory=self.path, **policy),
        )

    def confirm(self, name: str, heard: str | None = None) -> None:
        own = self.credentials(name)
        given = given_directory(self.path, own, self.time)
        confirm(self.config(name), own, given, " ".join(given.words) if heard is None else heard)

    def pins(self, name: str, **policy: Any) -> dict[str, str]:
        return with_pins(self.config(name, **policy), self.credentials(name), self.time)[0].policy.trusted

    def replace_key(self, name: str, role: Role) -> None:
        """As a compromised authority would: another key under a name."""
        party = prepare(self.directory / f"{name}-{len(self.authority.issued())}", name, role)
        authority = self.authority
        authority.sign(read_file(party.request, "request"), role=role, name=name, replace=True)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(make_kit(tmp_path / "kit", ["north", "south", "west"], clock=lambda: NOW), tmp_path)


def test_the_root_is_that_of_certificate_transparency() -> None:
    leaves = [bytes.fromhex(leaf) for leaf in LEAVES]
    assert [merkle_root(leaves[:count]).hex() for count in range(1, 9)] == ROOTS


@pytest.mark.parametrize(
    ("root", "words"),
    [
        ("00" * 32, "abandon " * 23 + "art"),
        ("ff" * 32, "zoo " * 23 + "vote"),
        ("7f" * 32, "legal winner thank year wave sausage worth useful " * 2
         + "legal winner thank year wave sausage worth title"),
        ("80" * 32, "letter advice cage absurd amount doctor acoustic avoid " * 2
         + "letter advice cage absurd amount doctor acoustic bless"),
    ],
)  # fmt: skip
def test_the_words_are_those_of_bip_39(world: World, root: str, words: str) -> None:
    """The 256-bit vectors that BIP-39 publishes."""
    directory = world.sign()
    directory.root = bytes.fromhex(root)
    assert " ".join(directory.words) == words


def test_the_authority_lists_participants_and_analysts_by_their_latest_key(world: World) -> None:
    first = world.sign()
    own = {name: world.credentials(name).identity.fingerprint for name in ("north", "south", "west")}
    assert first.keys(Role.PARTICIPANT) == own
    assert set(first.keys(Role.ANALYST)) == {"analyst"}
    assert [member.name for member in first.members] == ["analyst", "north", "south", "west"]
    assert (first.version, first.issued, first.expires) == (1, NOW, NOW + 365 * DAY)

    world.replace_key("west", Role.PARTICIPANT)
    second = world.sign(days=10, without=["analyst"])
    assert (second.version, second.expires) == (2, NOW + 10 * DAY)
    assert second.keys(Role.PARTICIPANT)["west"] not in own.values()
    assert second.keys(Role.ANALYST) == {}
    west = second.keys(Role.PARTICIPANT)["west"]
    assert changes(first, second) == ["removed: analyst analyst", f"changed: participant west, key {own['west']} -> {west}"]
    assert changes(second, first) == [
        f"added: analyst analyst, key {first.keys(Role.ANALYST)['analyst']}",
        f"changed: participant west, key {west} -> {own['west']}",
    ]
    assert changes(first, first) == []
    assert len({first.root, second.root, world.sign(days=10, without=["analyst"]).root}) == 3


def test_who_was_left_out_stays_out_until_taken_in_again(world: World) -> None:
    world.time += 1
    world.sign(without=["west", "analyst"])
    world.time += 1
    world.replace_key("west", Role.PARTICIPANT)  # a new certificate does not bring it back
    world.replace_key("late", Role.PARTICIPANT)
    second = world.sign()
    assert [member.name for member in second.members] == ["late", "north", "south"]
    third = world.sign(again=["west"], without=["late"])
    assert [member.name for member in third.members] == ["north", "south", "west"]
    with pytest.raises(Misuse, match="'south' was not left out"):
        world.sign(again=["south"])


def test_whose_certificates_have_ended_is_not_listed(world: World) -> None:
    world.time = NOW + 366 * DAY
    with pytest.raises(Misuse, match="left to list"):
        world.sign()
    world.time = NOW
    with pytest.raises(Misuse, match="never signed for"):
        world.sign(without=["nrth"])
    for days in (0, 3654):
        with pytest.raises(Misuse, match=f"directory cannot be valid for {days} days"):
            world.sign(days=days)


def test_two_operators_at_once_sign_no_later_version_of_older_members(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = world.authority, world.authority
    issued = slow.issued

    def interrupted() -> list[Issued]:
        found = issued()
        party = prepare(world.directory / "late", "late", Role.PARTICIPANT)
        fast.sign(read_file(party.request, "request"), role=Role.PARTICIPANT, name="late")
        sign_directory(fast)
        return found

    monkeypatch.setattr(slow, "issued", interrupted)
    with pytest.raises(StateError, match="Another operator signed version 1") as caught:
        sign_directory(slow)
    assert "Sign again" in str(caught.value)
    kept = [parse_directory(path.read_bytes(), fast.certificate) for path in (fast.directory / "directories").iterdir()]
    assert ["late" in {member.name for member in directory.members} for directory in kept] == [True]


def resigned(world: World, change: Callable[[dict[str, Any]], None], *, root: bool = True) -> bytes:
    """The directory after a change, with the root and signature that an authority's key can always make."""
    body = json.loads(world.path.read_text())
    change(body)
    key = SigningKey.from_pem((world.kit.authority / "key.pem").read_bytes())
    head = {name: body[name] for name in ("format", "federation", "version", "issued", "expires")}
    computed = merkle_root([canonical(head), *(canonical(member) for member in body["members"])])
    if root:
        body["root"] = computed.hex()
    body["signature"] = key.sign(Label.DIRECTORY, computed).hex()
    return canonical(body)


def twice(body: dict[str, Any]) -> None:
    body["members"].insert(2, body["members"][1])


def twice_with_another_key(body: dict[str, Any]) -> None:
    body["members"].insert(2, {**body["members"][1], "fingerprint": "0" * 64})


def reordered(body: dict[str, Any]) -> None:
    body["members"].reverse()


def one_key_twice(body: dict[str, Any]) -> None:
    body["members"][2]["fingerprint"] = body["members"][1]["fingerprint"]


@pytest.mark.parametrize(
    ("change", "root", "words"),
    [
        (twice, True, "lists 'north' twice"),
        (twice_with_another_key, True, "lists 'north' twice"),
        (reordered, True, "not in order"),
        (one_key_twice, True, "one key under two names"),
        (lambda body: body.update(root="0" * 64), False, "root is not that of its contents"),
        (lambda body: body.update(expires=body["issued"]), True, "ends before it begins"),
        (lambda body: body.update(federation="0" * 64), True, "another federation"),
        (lambda body: body.update(members=[]), True, "not a directory"),
        (lambda body: body.update(version=0), True, "not a directory"),
        (lambda body: body.update(version=True), True, "not a directory"),
        (lambda body: body.update(format="veilsum/2/directory"), True, "not a directory"),
        (lambda body: body["members"][1].update(role="coordinator"), True, "not a directory"),
        (lambda body: body["members"][1].update(name="North"), True, "not a directory"),
        (lambda body: body["members"][1].update(more=1), True, "not a directory"),
        (lambda body: body.update(more=1), True, "not a directory"),
    ],
)
def test_what_even_the_authority_cannot_sign(
    world: World, change: Callable[[dict[str, Any]], None], root: bool, words: str
) -> None:
    world.sign()
    assert parse_directory(resigned(world, lambda body: None), world.authority.certificate).root == world.read().root
    with pytest.raises(HostileInput, match=words):
        parse_directory(resigned(world, change, root=root), world.authority.certificate)


def test_a_directory_that_another_signed_is_refused(world: World, tmp_path: Path) -> None:
    world.sign()
    body = json.loads(world.path.read_text())
    other = SigningKey.generate()
    for label, key in (
        (Label.DIRECTORY, other),
        (Label.STUDY, SigningKey.from_pem((world.kit.authority / "key.pem").read_bytes())),
    ):
        body["signature"] = key.sign(label, bytes.fromhex(body["root"])).hex()
        with pytest.raises(HostileInput, match="not signed by this federation's authority"):
            parse_directory(canonical(body), world.authority.certificate)
    foreign = make_kit(tmp_path / "other", ["north", "south"], clock=lambda: NOW)
    with pytest.raises(HostileInput, match="another federation"):
        parse_directory(world.path.read_bytes(), Authority.load(foreign.authority, lambda: NOW).certificate)


def test_no_byte_of_the_file_can_be_changed(world: World) -> None:
    world.sign()
    data, authority = world.path.read_bytes(), world.authority.certificate
    for place in range(len(data)):
        with pytest.raises(HostileInput):
            parse_directory(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], authority)
    for other in (data + b"\n", data[:-1], b"", json.dumps(json.loads(data)).encode(), b" " * 65537):
        with pytest.raises(HostileInput):
            parse_directory(other, authority)


def test_a_directory_counts_once_it_was_confirmed(world: World) -> None:
    directory = world.sign()
    with pytest.raises(ConfigurationError, match="was not confirmed"):
        world.pins("north")
    world.confirm("north", "  " + "\n".join(directory.words).upper() + " ")
    assert world.pins("north") == directory.keys(Role.PARTICIPANT)
    assert set(world.pins("north", not_trusted=("west",))) == {"north", "south"}
    with pytest.raises(Misuse, match="names 'wst', who is not in the directory"):
        world.pins("north", not_trusted=("wst",))
    with pytest.raises(ConfigurationError, match="was not confirmed"):  # one site's word is not another's
        world.pins("south")


def test_metrics_tell_when_the_directory_ends(world: World, tmp_path: Path) -> None:
    bed = make_bed(tmp_path / "bed", make_data("ab", 3))
    site = bed.sites["a"]

    def shown() -> float | None:
        return SiteMetrics(site).registry.get_sample_value("veilsum_directory_expiry_timestamp_seconds")

    assert math.isnan(shown() or 0)
    site.directory = world.sign(days=40)
    assert shown() == site.directory.expires == world.time + 40 * 86400


def test_every_change_is_refused_until_it_is_confirmed_again(world: World) -> None:
    first = world.sign()
    world.confirm("north")
    for _ in range(2):  # the same members, but another version; then another key
        later = world.sign()
        with pytest.raises(ConfigurationError, match=rf"\(version {later.version}\) is not the one that was confirmed"):
            world.pins("north")
        world.confirm("north")
        assert world.pins("north") == later.keys(Role.PARTICIPANT)
        world.replace_key("west", Role.PARTICIPANT)
    world.path.write_bytes(first.data)  # an older one comes back
    with pytest.raises(ConfigurationError, match="is not the one that was confirmed"):
        world.pins("north")
    with pytest.raises(HostileInput, match=r"of version 1; the confirmed one is of version 3"):
        world.confirm("north")


def test_two_directories_of_one_version_are_an_alarm(world: World) -> None:
    world.sign()
    world.confirm("north")
    world.path.write_bytes(resigned(world, lambda body: body["members"][3].update(fingerprint="0" * 64)))
    with pytest.raises(HostileInput, match="another directory than the confirmed one, of the same version 1"):
        world.confirm("north")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda body: body["members"][1].update(fingerprint="0" * 64), "lists this site under another key"),
        (lambda body: body["members"].pop(1), "does not list this site"),
        (lambda body: body["members"][1].update(role="analyst"), "does not list this site"),
    ],
)
def test_no_site_reads_out_a_directory_without_its_own_key(
    world: World, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    """So words that all agree on are of a directory in which every key is its owner's."""
    world.sign()
    world.path.write_bytes(resigned(world, change))
    with pytest.raises(ConfigurationError, match=words):
        world.confirm("north")
    with pytest.raises(ConfigurationError, match=words):
        world.pins("north")
    given_directory(world.path, world.credentials("south"), NOW)  # whom it does not concern


def test_words_are_compared_whole(world: World) -> None:
    directory = world.sign()
    words = directory.words
    for heard, error, said in (
        ("", Misuse, "24 words; these are 0"),
        (" ".join(words[:23]), Misuse, "24 words; these are 23"),
        (" ".join([*words[:6], "veilsum", *words[7:]]), Misuse, r"Word 7 \('veilsum'\) is not on the list"),
        (" ".join(world.sign().words), HostileInput, "another directory than this one. Nothing is confirmed"),
    ):
        with pytest.raises(error, match=said):
            check_words(heard, directory)
    misheard = [*words[:6], "zoo" if words[6] != "zoo" else "art", *words[7:]]
    with pytest.raises((Misuse, HostileInput)):  # the checksum has 8 bits: one in 256 misheard words passes it
        check_words(" ".join(misheard), directory)
    world.path.write_bytes(directory.data)
    with pytest.raises(Misuse):
        world.confirm("north", "abandon")
    assert not confirmed_path(world.config("north")).exists()
    check_words(" ".join(words), directory)


def test_a_directory_has_its_time(world: World) -> None:
    directory = world.sign(days=10)
    world.confirm("north")
    world.time = directory.issued - 300
    assert world.pins("north")
    world.time -= 1
    with pytest.raises(HostileInput, match="not valid yet"):
        directory.check_time(world.time)
    world.time = directory.expires
    assert world.pins("north")
    world.time += 1
    with pytest.raises(ConfigurationError, match="The directory has expired: it ended on"):
        world.pins("north")
    with pytest.raises(ConfigurationError, match="expired"):
        world.confirm("north")


def test_a_damaged_confirmation_is_none(world: World) -> None:
    world.sign()
    world.confirm("north")
    path = confirmed_path(world.config("north"))
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":9'))
    with pytest.raises(ConfigurationError, match="root is not that of its contents"):
        world.pins("north")


def test_a_site_opens_with_the_pins_and_stops_when_their_time_is_over(world: World) -> None:
    directory = world.sign(days=10)
    world.confirm("north")
    site = open_site(world.config("north"), clock=lambda: world.time)
    try:
        assert site.config.policy.trusted == directory.keys(Role.PARTICIPANT)
        check_directory(site)
        world.time = directory.expires + 1
        with pytest.raises(Refusal, match="expired") as caught:
            check_directory(site)
        assert caught.value.code is RefusalCode.COHORT_TRUST
    finally:
        site.database.close()


def test_an_analyst_in_the_directory_is_known_by_key(world: World) -> None:
    """A certificate of an accepted analyst's name is not enough: a compromised authority could sign one."""
    world.sign()
    world.confirm("north")
    site = open_site(world.config("north", analysts=("analyst", "bob")), clock=lambda: world.time)
    try:
        real = load_credentials(world.kit.analyst.identity, NOW)
        party = prepare(world.directory / "false", "analyst", Role.ANALYST)
        csr = read_file(party.request, "request")
        opened = world.authority
        install(party.identity, opened.sign(csr, role=Role.ANALYST, name="analyst", replace=True), opened.certificate_pem)
        false = load_credentials(party.identity, NOW)
        stranger = prepare(world.directory / "bob", "bob", Role.ANALYST)
        csr = read_file(stranger.request, "request")
        install(stranger.identity, opened.sign(csr, role=Role.ANALYST, name="bob"), opened.certificate_pem)
        for who, code in ((real, RefusalCode.STUDY_INVALID), (false, RefusalCode.ANALYST),
                          (load_credentials(stranger.identity, NOW), RefusalCode.STUDY_INVALID)):  # fmt: skip
            data = b"{}"  # no study: whose it is comes first
            signed = SignedStudy(data, who.signing_key.sign(Label.STUDY, data), who.identity.certificate, "coordinator")
            with pytest.raises(Refusal) as caught:
                verify_study(site, study_digest(data), signed)
            assert caught.value.code is code
    finally:
        site.database.close()


def test_a_policy_has_one_source_of_pins() -> None:
    with pytest.raises(ValueError, match="needs trusted or directory"):
        Policy(directory=Path("directory.json"), trusted={"south": "0" * 64})
    with pytest.raises(ValueError, match="without one, leave them out"):
        Policy(not_trusted=("south",))
