"""No dataclass, settings object or named tuple shows a field that may hold a secret."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import NamedTuple

import pydantic
import pytest

import veilsum
import veilsum_aggregation
import veilsum_coordinator
import veilsum_deploy
import veilsum_node
import veilsum_participant
import veilsum_privacy
from veilsum_coordinator.protocol.settings import CoordinatorConfig
from veilsum_node.identity.signatures import SigningKey
from veilsum_node.identity.tls import Credentials
from veilsum_node.overrides import Override
from veilsum_node.transport.route import Proxy
from veilsum_participant.cli.places import LedgerPlace
from veilsum_privacy.securesum.boxes import BoxKey

PACKAGES = (
    veilsum_node,
    veilsum_privacy,
    veilsum,
    veilsum_participant,
    veilsum_coordinator,
    veilsum_deploy,
    veilsum_aggregation,
)
NAMES = re.compile(
    r"key|secret|seed|password|passphrase|token|consent|noise|share|private|credential|auth|nonce|mask|payload|database|url"
)
OPAQUE = {"SigningKey", "BoxKey", "SecretStr", "Credentials"}
"""Types that show nothing of what they hold: tested below."""
HARMLESS = re.compile(r"int|float|bool|Path|(pathlib\.)?Path|NoisePlan|FrameSize|dict\[str, float\]")
"""Types that cannot hold a secret: numbers (seeds of methods are public: they are part of a signed study), places of files,
descriptions of noise."""
PUBLIC = {
    ("ReceiptPart", "payload"): "a digest, which a whole cohort is shown",
    ("ReceiptPart", "consent"): "the digest of a consent, which a whole cohort is shown",
    ("ConsoleSettings", "url"): "a console's own address, in which nobody's name or password may stand",
    ("Listening", "url"): "the same",
    ("LoginSettings", "url"): "where people log in",
    ("Metadata", "authorization_endpoint"): "where people log in",
    ("Metadata", "token_endpoint"): "where people log in",
    ("BucketConfig", "url"): "which objects; the key to them is in a file",
    ("Bucket", "url"): "which objects; the key to them is in a file",
    ("StoredFile", "key"): "the name of an object",
    ("ReleaseRow", "noise"): "how much noise, in words",
    ("StudyCost", "noise"): "how noise is added",
    ("StudyTerms", "noise"): "how noise is added",
    ("AuditRow", "noise"): "how noise is added",
    ("PrivacyDemand", "noise"): "how noise is added",
    ("PrivacyRequest", "noise"): "how noise is added",
    ("Policy", "noise"): "which kinds of noise are accepted",
    ("Policy", "share_metrics"): "which figures are shared",
    ("Policy", "masks"): "between whom masks may be shared",
    ("Terms", "noise"): "which kinds of noise are accepted",
    ("TaskCost", "noise"): "standard deviations",
    ("OwnAlignment", "noise_std"): "standard deviations",
    ("Release", "noise_std"): "standard deviations",
    ("ReleasedPart", "noise_std"): "standard deviations",
    ("LocalTrainingParameters", "noise_step"): "the grid of a study's noise",
    ("KeptReceipt", "consent"): "a commitment, not the consent",
    ("Receipt", "consent"): "a commitment, not the consent",
    ("Receipt", "payload"): "a digest",
    ("Override", "key"): "the name of a configuration's key",
    ("SweptKey", "key"): "the name of a parameter",
    ("Verification", "keys"): "fingerprints",
    ("Study", "nonce"): "part of a signed study",
    ("Site", "nonce"): "the session's, sent to everyone",
    ("Session", "nonce"): "the session's, sent to everyone",
    ("MemberState", "nonce"): "the session's, sent to everyone",
    ("Site", "noise_random"): "the operating system's source, which has no state here",
    ("PlainSite", "noise_random"): "of simulated sites",
    ("_InStore", "token"): "names a simulation's arrays in a local store",
    ("Received", "seed"): "public, part of a signed study",
    ("Sweep", "seeds"): "of simulations",
    ("NoisedCalibration", "by_noise"): "figures",
    ("StudyResult", "authority"): "the authority's certificate",
    ("GeneratedFeatures", "noise"): "figures: what noise explains of a head's norm",
    ("Levels", "noise"): "variances",
}


class Found(NamedTuple):
    """A field of a class."""

    owner: str
    name: str
    type: str
    shown: bool


def told(annotation: object) -> str:
    """A type as a module writes it, whether its annotations are put off or not."""
    return annotation.__name__ if isinstance(annotation, type) and not hasattr(annotation, "__args__") else str(annotation)


def fields_of(kind: type) -> Iterator[Found]:
    """The fields that a class's representation may show."""
    if dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            own = "__repr__" in vars(kind) and kind.__dataclass_params__.repr  # type: ignore[attr-defined]
            yield Found(kind.__name__, field.name, told(field.type), field.repr and own)
    elif issubclass(kind, pydantic.BaseModel):
        for name, info in kind.model_fields.items():
            yield Found(kind.__name__, name, getattr(info.annotation, "__name__", str(info.annotation)), info.repr)
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        for name in kind._fields:
            yield Found(kind.__name__, name, told(kind.__annotations__.get(name, "")), True)


def every_class() -> Iterator[type]:
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__") and ".migrations." not in module.name:
                for kind in vars(importlib.import_module(module.name)).values():
                    if isinstance(kind, type) and kind.__module__ == module.name:
                        yield kind


def is_safe(found: Found) -> bool:
    parts = {part.strip().rpartition(".")[2] for part in found.type.split("|")} - {"None"}
    harmless = all(HARMLESS.fullmatch(part) for part in parts)
    return not found.shown or parts <= OPAQUE or harmless or (found.owner, found.name) in PUBLIC


def test_no_class_shows_a_field_that_may_hold_a_secret() -> None:
    named = [found for kind in every_class() for found in fields_of(kind) if NAMES.search(found.name.lower())]
    assert [found for found in named if not is_safe(found)] == []
    hidden = {(found.owner, found.name) for found in named if not found.shown}
    assert hidden >= {("Credentials", "key_pem"), ("Proxy", "password"), ("Round", "consents"), ("MirroredReceipt", "consent")}
    present = {(found.owner, found.name) for found in named}
    assert set(PUBLIC) <= present, "exceptions that no class needs any more"


@dataclasses.dataclass
class _Shows:
    box_secret: bytes


@dataclasses.dataclass
class _Hides:
    box_secret: bytes = dataclasses.field(repr=False)


class _Settings(pydantic.BaseModel):
    token: str


class _Tuple(NamedTuple):
    self_seed: bytes


@pytest.mark.parametrize(("kind", "safe"), [(_Shows, False), (_Hides, True), (_Settings, False), (_Tuple, False)])
def test_the_check_finds_what_is_shown(kind: type, safe: bool) -> None:
    assert [is_safe(found) for found in fields_of(kind)] == [safe]


def test_what_holds_a_secret_shows_nothing_of_it() -> None:
    for opaque in (SigningKey.generate(), BoxKey.generate()):
        assert re.fullmatch(r"<?[\w.]+( object at 0x[0-9a-f]+>|\([^)]{0,90}\))", repr(opaque)), repr(opaque)
    word = "a-pass-word-of-somebody"
    url = f"postgresql://user:{word}@host/name"
    shown = [Proxy("proxy:1", "user", word), LedgerPlace(url), Override(("database",), "VEILSUM__DATABASE", url)]
    shown.append(CoordinatorConfig(database=url))  # type: ignore[arg-type]
    for item in shown:
        assert word not in f"{item!r} {item} {item!s}"
    assert word not in str(CoordinatorConfig(database=url).model_dump())  # type: ignore[arg-type]
    assert {field.name for field in dataclasses.fields(Credentials) if field.repr} <= {"identity", "signing_key"}
