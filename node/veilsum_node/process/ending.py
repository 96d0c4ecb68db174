"""How a process of ours ends: errors as messages, with one exit status each.

Exit status: 0 done, 1 the answer is negative (a check, a verification or a study failed), 2 wrong usage or a typed error, 70 a
fault of veilsum itself.
"""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from veilsum_node.errors import StateError, VeilsumError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ROOM = "Free space where the output or the state is written, then run it again."


def end_after(work: Callable[[], object], *, as_json: bool) -> NoReturn:
    """Do something and exit; typed errors become a message, advice and status 2.

    Args:
        as_json: whether an error is told to a program.
    """
    try:
        try:
            work()
        finally:
            _heed_no_signal()
    except BrokenPipeError:  # whoever read the output has seen enough
        _drop_output()
        sys.exit(1)
    except OSError as error:
        if error.errno not in _FULL:
            sys.exit(_crashed(error, as_json))
        _drop_output()
        sys.exit(_failed(StateError(f"Output or state cannot be written ({error.strerror}).", _ROOM), as_json))
    except VeilsumError as error:
        sys.exit(_failed(error, as_json))
    except Exception as error:  # noqa: BLE001  the last line of defence: no trace with a record's value on a screen
        sys.exit(_crashed(error, as_json))
    sys.exit(0)


def _heed_no_signal() -> None:
    """A process that signals told to stop is not killed by one while it ends: the interpreter, which ends too, gives up its
    handlers and would let the next one do what it does by default."""
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            signal.signal(number, signal.SIG_IGN)


def _failed(error: VeilsumError, as_json: bool) -> int:
    from veilsum_node.process.console import report_error  # what formats texts, which a process that serves does without

    return report_error(error, as_json=as_json)


def _crashed(error: Exception, as_json: bool) -> int:
    from veilsum_node.process.console import report_crash

    return report_crash(error, as_json=as_json)


def _drop_output() -> None:
    """Let what could not be written go nowhere, or the interpreter would try again at its end."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
