"""A participant whose guard's neighbours say what they import: ``python -P -m support.importing WATCHED CONFIG``.

``WATCHED`` is JSON of the beginnings of modules' names. What begins so is told from the interpreter's own hook, in a line of
the log, from before a process confines itself until it ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HOOK = """
import runpy, sys
WATCHED = {watched!r}
def look(event, given):
    if event == "import" and f"{{given[0]}}.".startswith(WATCHED):
        print(f"2026-01-01T00:00:00Z INFO imports {{given[0]}};", file=sys.stderr, flush=True)
sys.addaudithook(look)
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def main() -> None:
    watched, config = sys.argv[1:]
    hook = HOOK.format(watched=tuple(json.loads(watched)))
    from veilsum_participant.session import supervisor

    class Watched(supervisor._Child):
        def __init__(self, command: list[str], **named: Any) -> None:
            python, path, option, module, *given = command
            assert option == "-m"
            super().__init__([python, path, "-c", hook, module, *given], **named)

    supervisor._Child = Watched  # type: ignore[misc]
    from veilsum_participant.session.__main__ import main as serve

    serve(Path(config))


if __name__ == "__main__":
    main()
