"""``python -m veilsum_deploy.coordinator``: the same as the coordinator's installed ``veilsum``."""

from veilsum_deploy.coordinator import main

main()
