"""``python -m veilsum_deploy.cli``: the same as the installed ``veilsum``."""

from veilsum_deploy.cli import main

main()
