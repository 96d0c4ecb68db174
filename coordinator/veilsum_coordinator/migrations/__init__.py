"""How the coordinator's tables came to be, step by step; run by :func:`veilsum_node.database.migrate`."""

HEAD = "0005"
"""The last version."""
