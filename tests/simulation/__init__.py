"""A federation on a virtual clock and a lossy network in one process: random histories, checked after every step.

Everything of the protocol is the product's own code: hub, participants, stores, ledgers, mirror, masks, check words, receipts.
Stand-ins are the clock, the network, the products of the lattice and the files, which lie in memory.
"""
