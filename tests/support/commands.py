"""Commands of ``veilsum``, run in this process as a shell would."""

from __future__ import annotations

import json
from typing import Any

import pytest

from veilsum_deploy import cli


def veilsum(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run a command; its exit status, output and errors."""
    with pytest.raises(SystemExit) as caught:
        cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, captured.out, captured.err


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """What a command that succeeds prints as JSON."""
    code, out, err = veilsum(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)
