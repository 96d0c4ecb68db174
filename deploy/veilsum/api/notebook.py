"""What is shown while a study runs, and tables, in a notebook or on a terminal."""

import html
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from veilsum.progress import Pace, follow, words
from veilsum.remote import StudyInfo
from veilsum_node.errors import StateError

MOST_NAMED = 12
"""How many of a list are shown; of the others the number."""


def show_progress(states: Iterable[StudyInfo], study: str, *, shown: bool | None) -> StudyInfo:
    """Follow a study to its end.

    Args:
        states: as they come.
        study: its id, which is shown first, so that it can be taken up after an interruption.
        shown: whether to show anything; None for yes where a person looks on, in a notebook or on a terminal.

    Raises:
        StateError: the states end without any.
    """
    notebook = in_notebook()
    if shown is None:
        shown = notebook or sys.stdout.isatty()
    if not shown:
        return _last(states)
    if notebook:
        return _last(_displayed(states, study))
    print(f"Study {study}", flush=True)
    return follow(states, as_json=False)


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook. IPython is looked for only if it has been imported."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


def enable_figures() -> None:
    """Let a notebook show matplotlib figures as pictures, also where nobody has asked for pyplot."""
    if in_notebook():
        from IPython.core.pylabtools import select_figure_formats

        select_figure_formats(sys.modules["IPython"].get_ipython(), {"png"})


def fields_html(fields: Mapping[str, Any]) -> str:
    """Names and values as a small table; of lists the first :data:`MOST_NAMED`. Everything is escaped."""
    rows = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in fields.items())
    return f"<table><tbody>{rows}</tbody></table>"


def _displayed(states: Iterable[StudyInfo], study: str) -> Iterator[StudyInfo]:
    """Pass the states on, and show each in place of the last one."""
    from IPython.display import HTML, display

    pace, handle = Pace(time.monotonic), None
    for info in states:
        left = pace.left(info)
        text = f"{words(info)}{', ' if left else ''}{left}"
        content = HTML(
            f"<div><code>{study[:12]}</code> {_text(info.name)}<br>"
            f"<progress max='1' value='{info.progress:.3f}'></progress> {_text(text)}</div>"
        )
        if handle is None:
            handle = display(content, display_id=True)
        else:
            handle.update(content)
        yield info


def _last(states: Iterable[StudyInfo]) -> StudyInfo:
    followed = deque(states, maxlen=1)
    if not followed:
        raise StateError("The coordinator ended the watch without a reason.", "Ask for the study's status.")
    return followed[0]


def _text(value: Any) -> str:
    return html.escape(plain_text(value))


def plain_text(value: Any) -> str:
    """A value for people: of a list the first :data:`MOST_NAMED`, of a table its keys with their values."""
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {plain_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        more = f" and {len(value) - MOST_NAMED} more" if len(value) > MOST_NAMED else ""
        return ", ".join(map(plain_text, value[:MOST_NAMED])) + more
    return str(value)
