"""``python -m veilsum_participant.cli``: the site's part of ``veilsum``."""

from veilsum_participant.cli import main

main()
