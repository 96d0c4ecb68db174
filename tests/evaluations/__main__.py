"""Run one evaluation and print its tables: ``python -m evaluations NAME [options]``."""

import sys
from collections.abc import Callable, Sequence

from evaluations import fedalign, fedavot, hfedatm

EVALUATIONS: dict[str, Callable[[Sequence[str]], None]] = {
    "fedalign": fedalign.main,
    "fedavot": fedavot.main,
    "hfedatm": hfedatm.main,
}


def main(arguments: Sequence[str]) -> None:
    """Hand the rest of the command line to the evaluation that its first word names."""
    if not arguments or arguments[0] not in EVALUATIONS:
        sys.exit(f"usage: python -m evaluations {{{','.join(EVALUATIONS)}}} [options]")
    EVALUATIONS[arguments[0]](arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
