"""A site's ledger for tests: fixed key, counting clock, seeded genesis."""

from __future__ import annotations

import hashlib
import hmac
from itertools import count
from pathlib import Path

from sqlalchemy import Engine

from support.randomness import SeededRandom
from veilsum_privacy.database import open_database
from veilsum_privacy.ledger import Ledger, Reservation
from veilsum_privacy.noise import plan_noise

STUDY = hashlib.sha256(b"study").digest()
OTHER_STUDY = hashlib.sha256(b"other study").digest()
KEY = b"the site's key"
GRID = 1000


def sign(data: bytes) -> bytes:
    return hmac.digest(KEY, data, "sha256")


def check_signature(data: bytes, signature: bytes) -> bool:
    return hmac.compare_digest(sign(data), signature)


def open_ledger(place: str | Path | Engine, site: str = "north") -> Ledger:
    engine = place if isinstance(place, Engine) else open_database(place)
    ticks = count(1_700_000_000)
    return Ledger(engine, site=site, sign=sign, clock=lambda: next(ticks), random=SeededRandom(site.encode()))


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
) -> Reservation:
    variance = 0 if kind == "none" else round((multiplier * GRID) ** 2)
    context = hashlib.sha256(study + b"%d/%d" % (round_number, attempt) + salt).digest()
    return Reservation(
        study=study,
        round=round_number,
        attempt=attempt,
        context=context,
        population=population,
        dataset="heart-2024",
        sensitivity=GRID,
        noise=plan_noise(kind, variance, 4, 1),  # type: ignore[arg-type]
        unit="record",
        cohort_size=4,
        sampling_rate=rate,
        steps=steps,
    )
