"""Ledgers for tests: real keys of one trial federation, a counting clock, and whole rounds between sites and a mirror.

Certificates are valid for ten years around the clock's start. :class:`Trial` plays rounds as the protocol does, without masks
and contributions: reserve, sign receipts, show them, charge, consent, release; a test departs from it where it likes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import DNSName

from support.certificates import DAY, Forge
from support.fresh import LEDGER, fresh_database
from support.randomness import SeededRandom
from veilsum_node.database import Database
from veilsum_node.identity import Credentials, Role, SigningKey, verify_certificate
from veilsum_privacy.ledger import Ledger, LedgerReader, Mechanism, Mirror, Receipt, Reservation, SignedReceipt, Witness
from veilsum_privacy.ledger.receipts import consent_commitment, consent_proof, sign_receipt
from veilsum_privacy.mechanism.noise_plan import plan_noise

STUDY = hashlib.sha256(b"study").digest()
OTHER_STUDY = hashlib.sha256(b"other study").digest()
GRID = 1000
START = 1_700_000_000
COORDINATOR = "coordinator"

_CURVE = ec.SECP256R1()


@cache
def federation(name: str = "trial") -> Forge:
    """The authority of a trial federation; one for each name and process."""
    return Forge(name, not_before=START - DAY, not_after=START + 3650 * DAY)


def make_key(secret: int) -> ec.EllipticCurvePrivateKey:
    """A private key from a number: the same in every process."""
    return ec.derive_private_key(secret, _CURVE)


def credentials_of(
    name: str = "north", *, role: Role = Role.PARTICIPANT, secret: int = 1, of: str = "trial", days: int = 3650
) -> Credentials:
    """Credentials of a party whose key follows from its name and ``secret``; the same ones for the same arguments."""
    return _credentials(name, role, secret, of, days)


@cache
def _credentials(name: str, role: Role, secret: int, of: str, days: int) -> Credentials:
    forge = federation(of)
    key = make_key(secret + int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))
    coordinator = role is Role.COORDINATOR
    certificate = forge.leaf(
        name=name,
        key=key,
        uris=[f"veilsum://{of}/{role}/{name}"],
        alternatives=[DNSName("localhost")] if coordinator else [],
        extended=role.key_usages,
        not_before=START - 60,
        not_after=START + days * DAY,
    )
    identity = verify_certificate(certificate, forge.ca, START, role)
    return Credentials(identity, SigningKey(key), forge.ca, b"", certificate, forge.ca.public_bytes(Encoding.PEM))


def ticking(start: int = START) -> Callable[[], int]:
    """A clock that goes on by a second whenever it is read."""
    ticks = count(start)
    return lambda: next(ticks)


def open_ledger(
    place: str | Path | Database,
    site: str = "north",
    *,
    credentials: Credentials | None = None,
    clock: Callable[[], int] | None = None,
) -> Ledger:
    """A site's ledger, created or opened again."""
    database = place if isinstance(place, Database) else fresh_database(place, LEDGER)
    own = credentials or credentials_of(site)
    return Ledger(database, credentials=own, clock=clock or ticking(), random=SeededRandom(site.encode()))


def open_mirror(
    place: str | Path | Database, *, credentials: Credentials | None = None, clock: Callable[[], int] | None = None
) -> Mirror:
    """A coordinator's mirror, created or opened again."""
    database = place if isinstance(place, Database) else fresh_database(place, LEDGER)
    own = credentials or credentials_of(COORDINATOR, role=Role.COORDINATOR)
    return Mirror(database, credentials=own, clock=clock or ticking(), random=SeededRandom(b"mirror"))


def set_budget(ledger: Ledger, epsilon: float | None = 3.0, population: str = "heart", *, delta: float = 1e-5) -> int:
    """Set a budget in a transaction of its own."""
    with ledger.database.transaction() as connection:
        return ledger.set_budget(connection, population, epsilon, delta, reason="ethics 12/24", operator="dr. privacy")


def make_reservation(
    round_number: int = 1,
    attempt: int = 1,
    *,
    multiplier: float = 4.0,
    study: bytes = STUDY,
    population: str = "heart",
    kind: str = "distributed",
    rate: float = 1.0,
    steps: int = 1,
    salt: bytes = b"",
    cohort_size: int = 4,
) -> Reservation:
    """A release on a grid of 1000 units, of a cohort with one colluder."""
    variance = 0 if kind == "none" else round((multiplier * GRID) ** 2)
    context = hashlib.sha256(study + b"%d/%d" % (round_number, attempt) + salt).digest()
    return Reservation(
        study=study,
        round=round_number,
        attempt=attempt,
        context=context,
        population=population,
        dataset="heart-2024",
        mechanism=Mechanism(GRID, plan_noise(kind, variance, cohort_size, 1), rate, steps),  # type: ignore[arg-type]
        unit="record",
        cohort_size=cohort_size,
    )


def any_receipt(study: bytes = STUDY, participant: str = "north", **changes: object) -> Receipt:
    """A receipt with something in every field, for tests that only look at some."""
    release = make_reservation(study=study)
    values: dict[str, object] = {
        "context": bytes(32),
        "payload": bytes(32),
        "number": 1,
        "head": bytes(32),
        "round": release.round,
        "attempt": release.attempt,
        "dataset": release.dataset,
        "mechanism": release.mechanism,
        "unit": release.unit,
        "cohort_size": release.cohort_size,
        "consent": bytes(32),
    }
    return Receipt(study=study, participant=participant, **(values | changes))  # type: ignore[arg-type]


def make_receipt(ledger: Ledger, release: Reservation, number: int, **changes: object) -> SignedReceipt:
    """A site's signed receipt for a release, with its ledger's present head."""
    credentials = ledger._chain.credentials
    name, context = credentials.identity.name, release.context
    proof = consent_proof(make_consent(name, context))
    former = changes.get("version") == 1
    values: dict[str, object] = {
        "study": release.study,
        "participant": credentials.identity.name,
        "round": release.round,
        "attempt": release.attempt,
        "context": release.context,
        "payload": hashlib.sha256(b"payload" + release.context).digest(),
        "number": number,
        "head": changes["head"] if "head" in changes else ledger.head(),
        "dataset": release.dataset,
        "mechanism": release.mechanism,
        "unit": release.unit,
        "cohort_size": release.cohort_size,
        "consent": hashlib.sha256(proof).digest() if former else consent_commitment(context, name, proof),
    }
    return sign_receipt(Receipt(**(values | changes)), credentials.signing_key)  # type: ignore[arg-type]


def make_consent(name: str, context: bytes) -> bytes:
    """What a member consents with."""
    return hashlib.sha256(b"consent" + name.encode() + context).digest()


@dataclass
class Shown:
    """An attempt whose receipts were shown.

    Attributes:
        release: what it is.
        receipts: in the cohort's order.
        countersigned: the coordinator's word.
    """

    release: Reservation
    receipts: tuple[SignedReceipt, ...]
    countersigned: SignedReceipt


class Trial:
    """Sites with ledgers and a coordinator with a mirror, of one federation.

    Args:
        names: of the sites.
        place: where a party's ledger lies, by its name.
        epsilon: budget of the population ``heart`` at every site.

    Attributes:
        version: of the receipts that sites sign from now on.
    """

    version = 6

    def __init__(
        self,
        names: Sequence[str] = ("north", "south", "east", "west"),
        place: Callable[[str], str | Path | Database] = lambda _: ":memory:",
        epsilon: float | None = None,
    ) -> None:
        self.names = tuple(names)
        self.clock = ticking()
        self.ledgers = {name: open_ledger(place(name), name, clock=self.clock) for name in names}
        self.mirror = open_mirror(place(COORDINATOR), clock=self.clock)
        self.numbers: dict[tuple[str, bytes], int] = {}
        for ledger in self.ledgers.values():
            set_budget(ledger, epsilon)

    @property
    def certificates(self) -> dict[str, bytes]:
        """Of every party, by name; DER."""
        parties: Iterable[Ledger | Mirror] = (*self.ledgers.values(), self.mirror)
        identities = [party._chain.credentials.identity for party in parties]
        return {identity.name: identity.certificate for identity in identities}

    @property
    def readers(self) -> Mapping[str, LedgerReader]:
        """Every party's ledger, as someone without a key reads it."""
        return {name: LedgerReader(party.database) for name, party in (*self.ledgers.items(), (COORDINATOR, self.mirror))}

    def others(self, name: str) -> list[LedgerReader]:
        """Everyone else's."""
        return [reader for other, reader in self.readers.items() if other != name]

    def release(self, round_number: int, attempt: int = 1, **options: object) -> Reservation:
        """A release of all sites."""
        return make_reservation(round_number, attempt, cohort_size=len(self.names), **options)  # type: ignore[arg-type]

    def reserve(self, release: Reservation) -> None:
        """Every site reserves."""
        for ledger in self.ledgers.values():
            with ledger.database.transaction() as connection:
                ledger.reserve(connection, release)

    def receipt(self, name: str, release: Reservation) -> SignedReceipt:
        """A site's next receipt."""
        number = self.numbers[name, release.study] = self.numbers.get((name, release.study), 0) + 1
        return make_receipt(self.ledgers[name], release, number, version=self.version)

    def show(self, release: Reservation) -> Shown:
        """Every site signs its receipt, and the coordinator countersigns them."""
        receipts = tuple(self.receipt(name, release) for name in self.names)
        with self.mirror.database.transaction() as connection:
            return Shown(release, receipts, self.mirror.show(connection, receipts, self.certificates))

    def witness(self, shown: Shown) -> Witness:
        """What each site keeps of it."""
        return Witness(shown.receipts, shown.countersigned, self.certificates)

    def charge(self, name: str, shown: Shown) -> int:
        """One site charges and keeps the receipts."""
        ledger = self.ledgers[name]
        with ledger.database.transaction() as connection:
            return ledger.charge(connection, shown.release.context, self.witness(shown))

    def consent(self, name: str, shown: Shown) -> int | None:
        """One site's consent reaches the coordinator."""
        context = shown.release.context
        with self.mirror.database.transaction() as connection:
            return self.mirror.consented(connection, context, name, make_consent(name, context))

    def free(self, name: str, release: Reservation) -> int:
        """One site gives the attempt up."""
        ledger = self.ledgers[name]
        with ledger.database.transaction() as connection:
            return ledger.free(connection, release.context)

    def see(self, release: Reservation, digest: bytes = b"\1" * 32) -> None:
        """The sum is released, and every site sees it."""
        with self.mirror.database.transaction() as connection:
            self.mirror.released(connection, release.context, digest)
        for ledger in self.ledgers.values():
            with ledger.database.transaction() as connection:
                ledger.release_seen(connection, release.context, digest)

    def play(self, round_number: int, attempt: int = 1, **options: object) -> Shown:
        """A whole round of all sites."""
        release = self.release(round_number, attempt, **options)
        self.reserve(release)
        shown = self.show(release)
        for name in self.names:
            self.charge(name, shown)
            self.consent(name, shown)
        self.see(release)
        return shown
