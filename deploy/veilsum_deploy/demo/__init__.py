"""``veilsum demo``: a federation of real processes on this machine."""
