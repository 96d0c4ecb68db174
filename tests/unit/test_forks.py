"""Two processes that are forked from one state draw nothing alike: no noise, mask, key, box or signature."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from support.randomness import SeededRandom
from veilsum_node.identity import Label, SigningKey
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_privacy.mechanism.noise import discrete_gaussian, gaussian_around
from veilsum_privacy.mechanism.steps import poisson_sample
from veilsum_privacy.securesum.boxes import BoxKey, seal
from veilsum_privacy.securesum.one_time_keys import encrypt_words
from veilsum_privacy.securesum.ring import RING_2048
from veilsum_privacy.securesum.short_keys import draw_key

KEY = SigningKey.generate()
BOX_KEY = BoxKey.generate()
PARTIES = {"study": bytes(32), "roster": bytes(32), "sender": "a", "recipient": "b"}
LIBRARYS = {"box", "a key for boxes", "a key for signatures", "a signature"}
"""Drawn by the cryptographic library, whatever the source."""


def encrypted(source: RandomSource) -> bytes:
    words = encrypt_words(
        np.zeros(9, dtype=np.uint64), np.zeros(RING_2048.degree, dtype=np.int64), bytes(32), RING_2048, source
    )
    return b"".join(part.tobytes() for part in words)


DRAWN: Mapping[str, Callable[[RandomSource], bytes]] = {
    "noise": lambda source: discrete_gaussian(Fraction(10**6), 40, source).tobytes(),
    "noise of what is not rounded": lambda source: gaussian_around(
        np.zeros(40, dtype=np.int64), Fraction(99), source
    ).tobytes(),
    "a sample of records": lambda source: poisson_sample(0.5, 200, source).tobytes(),
    "a one-time key": lambda source: draw_key(RING_2048, source).tobytes(),
    "errors": encrypted,
    "a consent, nonce or share": lambda source: source.bytes(32),
    "box": lambda _: seal(bytes(32), **PARTIES, public=BOX_KEY.public, key=KEY).ciphertext,  # type: ignore[arg-type]
    "a key for boxes": lambda _: BoxKey.generate().to_bytes(),
    "a key for signatures": lambda _: SigningKey.generate().to_pem(),
    "a signature": lambda _: KEY.sign(Label.SEEDS, bytes(32)),
}


def draws(source: RandomSource) -> dict[str, str]:
    """One of each, in this process."""
    return {what: draw(source).hex() for what, draw in DRAWN.items()}


def forked(source: RandomSource, number: int) -> list[dict[str, str]]:
    """What as many forks of this process draw, and then it itself."""
    found = []
    for _ in range(number):
        says, told = os.pipe()
        if not (child := os.fork()):
            with os.fdopen(told, "w") as line:
                json.dump(draws(source), line)
            os._exit(0)
        os.close(told)
        with os.fdopen(says) as line:
            found.append(json.load(line))
        os.waitpid(child, 0)
    return [*found, draws(source)]


def pooled(kind: str, number: int) -> list[dict[str, str]]:
    """What workers of a pool draw."""
    with ProcessPoolExecutor(number, multiprocessing.get_context(kind)) as pool:
        return [*pool.map(draws, [SYSTEM_RANDOM] * number)]


def main(how: str) -> None:
    """In a process of its own, which has drawn before it forks."""
    source: RandomSource = SeededRandom(b"planted") if how == "planted" else SYSTEM_RANDOM
    draws(source)
    if how == "forkserver":
        multiprocessing.set_forkserver_preload(["unit.test_forks"])
    print(json.dumps(pooled(how, 2) if how in ("fork", "forkserver") else forked(source, 3)))


def alike(how: str) -> set[str]:
    """Which kinds of draws are the same in two processes."""
    tests = Path(__file__).parents[1]
    asked = [sys.executable, "-c", f"from unit.test_forks import main; main({how!r})"]
    ran = subprocess.run(asked, cwd=tests, env=os.environ | {"PYTHONPATH": str(tests)}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert len(found) > 1
    return {what for one, other in itertools.combinations(found, 2) for what in DRAWN if one[what] == other[what]}


@pytest.mark.parametrize("how", ["system", "fork", "forkserver"])
def test_forks_draw_nothing_alike(how: str) -> None:
    assert not alike(how)


def test_a_source_that_lives_in_the_process_is_found() -> None:
    """A generator of the process's own, whose state a fork copies: all that is drawn of it is the same."""
    assert alike("planted") == DRAWN.keys() - LIBRARYS
