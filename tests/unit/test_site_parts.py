"""What reads a site's records and traces its studies is made when it is first asked for, once, and ended with the site."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from support.federation import make_bed, make_data
from veilsum_participant.data.local import LocalDatasets
from veilsum_participant.local_studies import LocalStudies


class Counted(LocalDatasets):
    """Counts how many there are, what they are to forget, and how often they are closed."""

    made, forgot, closed = 0, 0, 0

    together = threading.Barrier(2)

    def __init__(self) -> None:
        super().__init__()
        Counted.made += 1
        with contextlib.suppress(threading.BrokenBarrierError):  # where two are made at once, both are
            self.together.wait(0.2)

    def forget(self, digest: bytes) -> None:
        Counted.forgot += 1

    def close(self) -> None:
        Counted.closed += 1


def test_it_is_made_once_among_threads_and_not_to_forget_or_to_end(tmp_path: Path) -> None:
    site = make_bed(tmp_path, make_data("ab", 8)).sites["a"]
    site._datasets, site.reading = None, Counted
    traced: list[LocalStudies] = []
    site._studies, site.tracing = None, lambda: traced.append(LocalStudies()) or traced[-1]  # type: ignore[func-returns-value]
    site.forget(bytes(32))
    assert (Counted.made, len(traced)) == (0, 0)
    found: list[tuple[object, object]] = []
    ready = threading.Barrier(8)

    def ask() -> None:
        ready.wait()
        found.append((site.datasets, site.studies))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (Counted.made, len(traced)) == (1, 1)
    assert found == [(site.datasets, site.studies)] * 8
    site.forget(bytes(32))
    site.close()
    assert (Counted.forgot, Counted.closed) == (1, 1)
