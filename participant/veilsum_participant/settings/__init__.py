"""What a site's operator states, and what follows from that alone; no record is read.

``participant.toml`` with its datasets, their sources and encoders, the pins of a confirmed directory, and what each process
may reach.
"""
