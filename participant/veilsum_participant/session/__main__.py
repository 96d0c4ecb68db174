"""``python -P -m veilsum_participant.session CONFIG``: what ``veilsum participant start`` becomes where a site is divided."""

import sys
from pathlib import Path

from veilsum_node.process.ending import end_after
from veilsum_participant.session.serving import serve


def main(config: Path) -> None:
    """Serve until told to stop, and exit."""
    end_after(lambda: serve(config), as_json=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
