"""The operator's page: what a coordinator's operator sees of members, studies and storage, and the one thing to do: abort.

It asks the running coordinator as an operator does, over its own interface, and reads the journal, the results' folder and the
authority's record. It holds neither the coordinator's key nor the authority's.
"""
