"""Nothing looks for garbage while much is imported, and afterwards everything is as before."""

from __future__ import annotations

import gc
from contextlib import suppress

import pytest

from veilsum_node.process.imports import loading


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_off_inside_and_then_as_before(before: bool) -> None:
    was, frozen = gc.isenabled(), gc.get_freeze_count()
    (gc.enable if before else gc.disable)()
    try:
        with suppress(ImportError), loading():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is before
        assert gc.get_freeze_count() == frozen
    finally:
        (gc.enable if was else gc.disable)()


def test_a_process_that_serves_never_looks_at_what_it_loaded() -> None:
    frozen = gc.get_freeze_count()
    with loading(serves=True):
        kept = [[] for _ in range(1000)]
    assert gc.get_freeze_count() >= frozen + len(kept)  # and so it stays: tests' workers leave alone what they loaded, too
