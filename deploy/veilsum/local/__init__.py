"""A whole federation in one process: real participants and a real coordinator, without a network, on records of one's own.

Dealing records out, sweeps and plain addition without encryption are the laboratory's (:mod:`veilsum_deploy.simulation`),
which builds on this.
"""
