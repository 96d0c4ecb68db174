"""``python -m veilsum.cli``: the same as the analyst's installed ``veilsum``."""

from veilsum.cli import main

main()
