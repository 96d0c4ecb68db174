"""Random histories hold as well where masks are shared by neighbours only."""

from __future__ import annotations

import json
import time

from simulation.playing import FOUR, playing
from simulation.running import play_range
from simulation.test_histories import FEW_SECONDS, FEWEST, HISTORIES


def test_random_histories_hold_among_neighbours() -> None:
    with playing(neighbours=True) as player:
        ground = player.ground
        for name, disk in ((name, ground.disks[name]) for name in FOUR):
            disk.load(ground.keyed["noised"].images[name])
            ((seeds,),) = disk.rows("SELECT seeds FROM participant_study")
            assert len(json.loads(seeds)) == 2
        played = play_range(player, 0, HISTORIES, until=time.monotonic() + FEW_SECONDS)
        if played.histories < FEWEST:
            played.add(play_range(player, played.histories, FEWEST - played.histories))
    assert not played.failures, "\n".join(played.failures)
    finished = sum(count for phase, count in played.phases.items() if "finished" in phase)
    assert finished > played.histories // 2
