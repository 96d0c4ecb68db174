"""A participant in processes that tells at its end what its guard had loaded: ``python -P -m support.loaded FILE CONFIG``.

The launcher ends without a word, so that what is written is the guard's.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path


def main() -> None:
    place, config = sys.argv[1:]
    launcher = os.getpid()

    def tell() -> None:
        if os.getpid() != launcher:
            files = {name: str(getattr(module, "__file__", "")) for name, module in [*sys.modules.items()]}
            whole = Path(f"{place}.part")
            whole.write_text(json.dumps(files))
            whole.rename(place)  # whoever waits for it finds all of it

    atexit.register(tell)
    from veilsum_participant.session.__main__ import main as serve

    serve(Path(config))


if __name__ == "__main__":
    main()
