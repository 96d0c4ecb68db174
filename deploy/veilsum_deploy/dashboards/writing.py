"""Writes the dashboards as the JSON files that Grafana is provisioned with. Needs ``grafana-foundation-sdk``."""

from __future__ import annotations

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from veilsum_deploy.dashboards import budgets, participant, rounds
from veilsum_deploy.dashboards.builders import RUNBOOKS

BOARDS = (rounds, budgets, participant)


def texts(runbooks: str = RUNBOOKS) -> dict[str, str]:
    """Text of every file by its name; ``runbooks`` is the URL that panels link below."""
    return {
        f"{board.UID}.json": json.dumps(board.build(runbooks).build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
        for board in BOARDS
    }


def write(folder: Path, runbooks: str = RUNBOOKS) -> list[Path]:
    """Write the files, over what lies there; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in texts(runbooks).items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths
