"""A process that is told to stop once more while it ends: ``python -P -m support.signalled MOMENT MODULE ARGUMENTS``.

The moment is ``loop``, right after an event loop has closed; ``exit``, when what is registered for the interpreter's end runs;
or ``end``, when the interpreter has given up its handlers of signals and takes its modules away.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import runpy
import signal
import sys
from typing import Any


def again(kill: Any = os.kill, own: Any = os.getpid, number: int = signal.SIGTERM) -> None:
    """Tell this process to stop; names are bound already, for at the end none is left to look up."""
    kill(own(), number)


class Last:
    """Whose end is that of the modules."""

    def __del__(self, say: Any = again) -> None:
        say()


def main() -> None:
    moment, module, *arguments = sys.argv[1:]
    if moment == "loop":
        closes = asyncio.SelectorEventLoop.close

        def closed(self: asyncio.SelectorEventLoop) -> None:
            closes(self)
            again()

        asyncio.SelectorEventLoop.close = closed  # type: ignore[method-assign]
    elif moment == "exit":
        atexit.register(again)
    else:
        sys.modules["last"] = Last()  # type: ignore[assignment]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
