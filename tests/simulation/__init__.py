"""A federation on a virtual clock and a lossy network in one process: random histories, checked after every step.

Everything of the protocol is the product's own code: hub, participants, stores, ledgers, mirror, masks, tags, receipts.
Stand-ins are the clock, the network, the lattice arithmetic of BFV and the files, which lie in memory.
"""
