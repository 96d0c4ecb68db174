"""Cohorts for tests of the sum under one-time keys: members with signing keys and seeds, none of them random, and all steps of
a round in order; and SEAL's own decryptor, as an oracle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from numpy.typing import NDArray
from tenseal import sealapi

from support.ledgers import any_receipt
from support.randomness import SeededRandom
from veilsum_node.identity import Identity, Role, SigningKey
from veilsum_privacy.ledger.receipts import SignedReceipt, consent_commitment, consent_proof, sign_receipt
from veilsum_privacy.results.sum_evidence import Evidence
from veilsum_privacy.results.whole_sums import total_to_bytes
from veilsum_privacy.securesum.check_words import (
    CheckStatement,
    Signed,
    SumStatement,
    challenge,
    check_words,
    checks_digest,
    consent_statement,
)
from veilsum_privacy.securesum.contributions import Contribution
from veilsum_privacy.securesum.data_masks import mask_values
from veilsum_privacy.securesum.key_shares import (
    MemberMasks,
    consent_of,
    mask_key,
    payload_digest,
    share_digest,
    share_to_bytes,
)
from veilsum_privacy.securesum.one_time_keys import coefficients_digest, encrypt_words
from veilsum_privacy.securesum.opening import Total
from veilsum_privacy.securesum.ring import RING_2048, RingParameters
from veilsum_privacy.securesum.seal_files import Scratch, Template, inflate
from veilsum_privacy.securesum.short_keys import draw_key
from veilsum_privacy.securesum.sum_plan import OneTimePlan, plan_sum

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]

STUDY = hashlib.sha256(b"study").digest()
ROUND, ATTEMPT = 1, 1


def identity(name: str, key: SigningKey, role: Role = Role.PARTICIPANT) -> Identity:
    """An identity without a certificate: what is tested here starts where certificates were verified."""
    return Identity(name, role, key.fingerprint, key.public_key, 0, 2**40, b"")


@lru_cache(maxsize=64)
def signing_key(name: str) -> SigningKey:
    """The same key for a name, always."""
    scalar = int.from_bytes(hashlib.sha256(b"signs" + name.encode()).digest(), "big") >> 1
    return SigningKey(ec.derive_private_key(scalar, ec.SECP256R1()))


@dataclass
class Members:
    """A cohort.

    Attributes:
        plan: of its sum.
        names: in roster order.
        pairs: the seed of every pair, by both names.
        selves: every member's self secret.
        context: of the attempt.
        source: of keys and errors.
        study, round, attempt: of it.
        keys: signing keys by name, the coordinator's among them; made up for names that have none here.
        lead: the coordinator's name.
    """

    plan: OneTimePlan
    names: tuple[str, ...]
    pairs: dict[frozenset[str], bytes]
    selves: dict[str, bytes]
    context: bytes
    source: SeededRandom
    study: bytes = STUDY
    round: int = ROUND
    attempt: int = ATTEMPT
    keys: Mapping[str, SigningKey] = field(default_factory=dict)
    lead: str = "coordinator"

    def key(self, name: str) -> SigningKey:
        """What a party signs with."""
        return self.keys.get(name) or signing_key(name)

    @property
    def ring(self) -> RingParameters:
        return self.plan.ring

    @property
    def identities(self) -> tuple[Identity, ...]:
        return tuple(identity(name, self.key(name)) for name in self.names)

    @property
    def coordinator(self) -> Identity:
        return identity(self.lead, self.key(self.lead), Role.COORDINATOR)

    def seeds(self, name: str) -> dict[str, bytes]:
        """One member's pair seeds by the other's name."""
        return {other: self.pairs[frozenset((name, other))] for other in self.names if other != name}

    def consent(self, name: str) -> bytes:
        return consent_of(self.selves[name], self.context)

    @property
    def consents(self) -> list[bytes]:
        return [self.consent(name) for name in self.names]

    def masks(self, name: str) -> MemberMasks:
        return MemberMasks(self.context, name, self.names, self.seeds(name), self.consent(name))

    def mask(self, name: str, values: Integers) -> Words:
        return mask_values(values, self.plan, self.masks(name))

    def masked_total(self, vectors: Sequence[Integers]) -> Words:
        """The sum of all members' masked words mod t, as adding and opening their contributions would give it."""
        total = np.zeros(self.plan.words, dtype=np.uint64)
        for name, values in zip(self.names, vectors, strict=True):
            total = (total + self.mask(name, values)) % np.uint64(self.ring.plain_modulus)
        return total

    def share(self, name: str, key: Integers) -> Words:
        return mask_key(key, self.ring, len(self.names), self.masks(name))

    def encrypt(self, words: Words, key: Integers) -> Words:
        return np.concatenate(list(encrypt_words(words, key, self.context, self.ring, self.source)))

    def contribute(self, name: str, values: Integers) -> Sent:
        words, key = self.mask(name, values), draw_key(self.ring, self.source)
        return Sent(values, words, key, Contribution(self.share(name, key), self.encrypt(words, key)))

    def add(self, sent: Sequence[Sent]) -> Contribution:
        total = Total(self.plan)
        for one in sent:
            total.add(one.contribution)
        return total.contribution

    def receipt(self, name: str, contribution: Contribution, commitment: bytes | None = None, **changes: Any) -> SignedReceipt:
        payload = payload_digest(
            share_digest(share_to_bytes(contribution.share, self.ring, self.plan.cohort)),
            coefficients_digest(contribution.coefficients, self.ring),
        )
        proof = consent_proof(self.consent(name))
        values: dict[str, Any] = {
            "context": self.context, "payload": payload, "round": self.round, "attempt": self.attempt,
            "consent": commitment or consent_commitment(self.context, name, proof), "cohort_size": self.plan.cohort,
        }  # fmt: skip
        return sign_receipt(any_receipt(self.study, name, **(values | changes)), self.key(name))

    def answer(self, name: str, words: Words, rho: bytes, fixed: bytes) -> Signed:
        return self.say(name, check_words(words, self.ring.plain_modulus, rho, self.masks(name)), rho, fixed)

    def say(self, name: str, words: Sequence[int], rho: bytes, fixed: bytes) -> Signed:
        statement = CheckStatement(self.study, name, self.round, self.attempt, self.context, rho, fixed, tuple(words))
        return statement.sign(self.key(name))

    def fix(self, total: Contribution) -> tuple[bytes, Signed]:
        """D, and the coordinator's word on it."""
        fixed = total.digest(self.plan, self.context)
        word = SumStatement(self.study, self.lead, self.round, self.attempt, self.context, fixed)
        return fixed, word.sign(self.key(self.lead))

    def agree(self, checks: Sequence[Signed], rho: bytes, fixed: bytes) -> tuple[bytes, ...]:
        """Every member's signature under its consent statement."""
        bodies = checks_digest([item.body for item in checks])
        about = self.study, self.round, self.attempt, self.context, rho, fixed
        own = (CheckStatement(about[0], name, *about[1:], (0, 0, 0)) for name in self.names)
        return tuple(consent_statement(one, bodies).sign(self.key(one.participant)).signature for one in own)


@dataclass(frozen=True)
class Sent:
    """What a member knows of its contribution.

    Attributes:
        values, words, key: secret.
        contribution: as it is sent.
    """

    values: Integers = field(repr=False)
    words: Words = field(repr=False)
    key: Integers = field(repr=False)
    contribution: Contribution


@dataclass
class Played:
    """A whole round of honest members; ``total`` may be given in place of the true sum, as a coordinator could.

    Attributes:
        members: who took part.
        sent: what they sent, in order.
        total: the sum that the coordinator fixed.
    """

    members: Members
    sent: list[Sent]
    total: Contribution
    receipts: list[SignedReceipt]

    @cached_property
    def fixed(self) -> tuple[bytes, Signed]:
        return self.members.fix(self.total)

    @cached_property
    def rho(self) -> bytes:
        return challenge(self.members.context, [item.body for item in self.receipts], self.fixed[0])

    @cached_property
    def checks(self) -> list[Signed]:
        pairs = zip(self.members.names, self.sent, strict=True)
        return [self.members.answer(name, one.words, self.rho, self.fixed[0]) for name, one in pairs]

    @property
    def evidence(self) -> Evidence:
        return Evidence(
            tuple(self.receipts),
            total_to_bytes(self.total, self.members.plan),
            self.fixed[1],
            tuple(item.body for item in self.checks),
            tuple(self.members.consents),
            self.members.agree(self.checks, self.rho, self.fixed[0]),
        )

    @property
    def exact(self) -> Integers:
        return np.sum([one.values for one in self.sent], axis=0)


def make_members(
    count: int,
    size: int = 5,
    bound: int = 1000,
    ring: RingParameters = RING_2048,
    seed: int = 0,
    variance: Fraction = Fraction(0),
) -> Members:
    """A cohort with seeded keys and a plan for vectors of ``size``."""
    random = SeededRandom(b"one-time %d %d" % (count, seed))
    names = tuple(f"site-{index:02d}" for index in range(count))
    pairs = {frozenset((a, b)): random.bytes(32) for place, a in enumerate(names) for b in names[place + 1 :]}
    plan = plan_sum(size, bound, variance, count, ring)
    return Members(plan, names, pairs, {name: random.bytes(32) for name in names}, random.bytes(32), random)


def play(members: Members, vectors: Sequence[Integers], total: Contribution | None = None) -> Played:
    """All members contribute; the coordinator adds up, or fixes another sum."""
    sent = [members.contribute(name, values) for name, values in zip(members.names, vectors, strict=True)]
    receipts = [members.receipt(name, one.contribution) for name, one in zip(members.names, sent, strict=True)]
    return Played(members, sent, total or members.add(sent), receipts)


def some_vectors(members: Members, seed: int = 1) -> list[Integers]:
    """Values within the plan's bound."""
    random, plan = np.random.default_rng(seed), members.plan
    return [random.integers(-plan.bound, plan.bound + 1, plan.size) for _ in members.names]


def shifted(total: Contribution, place: int, amount: int, ring: RingParameters) -> Contribution:
    """A sum whose word at ``place`` is larger by ``amount``, as whoever adds up can make it without a key."""
    coefficients = total.coefficients.copy()
    added = round(Fraction(ring.prime * (amount % ring.plain_modulus), ring.plain_modulus))
    coefficients[place] = (int(coefficients[place]) + added) % ring.prime
    return replace(total, coefficients=coefficients)


def said_in(body: bytes) -> CheckStatement:
    """What stands in an answer's bytes."""
    value = json.loads(body)
    digests = {name: bytes.fromhex(value[name]) for name in ("study", "context", "challenge", "sum")}
    rest = {name: value[name] for name in ("participant", "round", "attempt")}
    return CheckStatement(**digests, **rest, words=tuple(value["words"]))


def seal_decrypts(coefficients: Words, common: Words, key: Integers, ring: RingParameters) -> list[int]:
    """What SEAL's own decryptor finds under a key in the ciphertext (c, -a): at most N words, of t as plain modulus."""
    values, words = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.BFV), 8 * ring.degree
    values.set_poly_modulus_degree(ring.degree)
    values.set_coeff_modulus(sealapi.CoeffModulus.Create(ring.degree, [ring.prime.bit_length()]))
    values.set_plain_modulus(ring.plain_modulus)
    context, scratch = sealapi.SEALContext(values, True, sealapi.SEC_LEVEL_TYPE.TC128), Scratch()
    assert context.parameters_set()

    def template(item: Any, numbers: int) -> Template:
        data = scratch.dump(item)
        return Template.of(inflate(data), data, numbers)

    def load(item: Any, data: bytes) -> Any:
        scratch.load(data, lambda path: item.load(context, path))
        return item

    plain = template(sealapi.Plaintext(f"1x^{ring.degree - 1}"), words)
    polynomial = load(sealapi.Plaintext(), plain.fill(np.mod(key, ring.plain_modulus).astype("<u8").tobytes()))
    sealapi.Evaluator(context).transform_to_ntt_inplace(polynomial, context.first_parms_id())
    frame = template(sealapi.KeyGenerator(context).secret_key(), words)
    secret = load(sealapi.SecretKey(), frame.fill(scratch.content(polynomial)[-words:]))

    pair = sealapi.Ciphertext(context)
    pair.resize(context, 2)
    first = np.zeros(ring.degree, dtype=np.uint64)
    first[: len(coefficients)] = coefficients
    second = (np.uint64(ring.prime) - common) % np.uint64(ring.prime)
    ciphertext = load(sealapi.Ciphertext(), template(pair, 2 * words).fill(first.tobytes() + second.tobytes()))
    opened = sealapi.Plaintext()
    sealapi.Decryptor(context, secret).decrypt(ciphertext, opened)
    return [opened[index] if index < opened.coeff_count() else 0 for index in range(len(coefficients))]
