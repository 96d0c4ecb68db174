"""Loaded first: the transport's setting before any test's import of gRPC, and what runs where nobody asks for more.

Tests marked ``system`` run whole federations for long. They are left out unless their file, or they themselves, are named on
the command line, or a mark expression decides (``-m system``). Properties are tried on a third of the examples that they state
but under ``--hypothesis-profile=thorough``. `make test-system` asks for both.

``@pytest.mark.sampled(n)`` stands at a test with many parameters that exercise one path: its first and last case and every nth
between them run everywhere, and the others are marked ``system``. Let n have no factor in common with the number of values of
an inner parameter, or only some of these are sampled.

A module's generator ``RNG`` begins anew with each test, from the test's name: whatever ran before it in the same process, it
draws the same.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Before numpy and torch are imported, here and in processes that tests start: there are as many workers as cores, and
# threads beyond those take three times the processor's time for waiting on each other.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("POT_BACKEND_DISABLE_JAX", "1")  # POT would import it, for a second in every process
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # they take longer than what runs once

import support.unsynced  # noqa: E402, F401
import veilsum_node.transport.tls13  # noqa: E402, F401

# What is imported and collected stays to the end: looking through it for garbage again and again finds nothing.
gc.disable()

THOROUGH = "thorough"
_STATED = "_stated_settings"

settings.register_profile("untimed", deadline=None)  # other load on the machine fails no test
settings.register_profile(THOROUGH, deadline=None)
settings.load_profile("untimed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Let workers be forked from one process; others come by ``--tx`` with an interpreter of their own."""
    from workers import forked

    named = [config.invocation_params.dir / word.partition("::")[0] for word in config.args]
    python, end = forked(named, config.getoption("--hypothesis-profile", None))
    config.add_cleanup(end)
    for spec in specs:
        if spec.popen and not spec.python:
            spec.python = python


@pytest.hookimpl(tryfirst=True)  # before `-m` decides by the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _mark_what_is_not_sampled(items)
    if settings.get_current_profile_name() != THOROUGH:
        for item in items:
            _try_fewer_examples(item)
    if config.option.markexpr:
        return
    named = {(config.invocation_params.dir / word.partition("::")[0]).resolve() for word in config.args}
    left_out = [item for item in items if item.get_closest_marker("system") and item.path not in named]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


@pytest.hookimpl(tryfirst=True)  # before fixtures draw
def pytest_runtest_setup(item: pytest.Item) -> None:
    from support.randomness import REDRAW

    generator = getattr(getattr(item, "module", None), "RNG", None)
    if generator is not None:
        fresh = type(generator.bit_generator)([*REDRAW, *item.nodeid.encode()])
        generator.bit_generator.state = fresh.state


@pytest.fixture
def known_randomness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process the system's source gives what follows from the test's name: where no test can hand in a source."""
    from support.randomness import SeededRandom
    from veilsum_node.randomness import SystemRandom

    source = SeededRandom(request.node.nodeid.encode())
    monkeypatch.setattr(SystemRandom, "bytes", lambda _, count: source.bytes(count))


@pytest.fixture
def few_rehearsals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans rehearse a study six times: where a test asks for a plan, and not how far it is right."""
    from veilsum_coordinator.parts.base import Method

    monkeypatch.setattr(Method, "rehearsals", 6)


@pytest.fixture
def plans_without_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans do not look for the epsilon of an error, which takes longest: where a test asks what else they say."""
    from veilsum.compile import StudyDraft

    monkeypatch.setattr(StudyDraft, "compile_for", lambda draft, error: None)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # tests leave little garbage, and what they share is looked through each time
    gc.enable()


@pytest.hookimpl(trylast=True)  # after fixtures
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()  # what a file leaves, in caches and modules that it was the first to import, stays to the end


def _mark_what_is_not_sampled(items: list[pytest.Item]) -> None:
    families: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("system"):
            families.setdefault((item.path, item.nodeid.partition("[")[0]), []).append(item)
    for cases in families.values():
        stride = cases[0].get_closest_marker("sampled").args[0]
        for index, item in enumerate(cases[:-1]):
            if index % stride:
                item.add_marker("system")


def _try_fewer_examples(item: pytest.Item) -> None:
    """Try a third of the examples that a property or a state machine asks for; no profile overrides what a test states."""
    machine = getattr(item, "cls", None)
    if isinstance(stated := getattr(machine, "settings", None), settings):
        machine.settings = _third(stated)
    function = getattr(item, "obj", None)
    asked = getattr(function, "_hypothesis_internal_use_settings", None)
    if asked is not None and not hasattr(function, _STATED):  # one function stands behind all its parameters
        setattr(function, _STATED, asked)
        function._hypothesis_internal_use_settings = _third(asked)


def _third(stated: settings) -> settings:
    return settings(stated, max_examples=max(1, stated.max_examples // 3))
