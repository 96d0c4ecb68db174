"""The operator's page: what a coordinator's operator sees of members, studies and storage, and may do: abort, archive, delete.

It asks the running coordinator as an operator does, over its own interface, and reads the journal, the results' folder and the
authority's record. Archiving and deleting are the commands' functions, on journal and folder. It keeps neither the
coordinator's key, which its checks look at, nor the authority's.
"""
