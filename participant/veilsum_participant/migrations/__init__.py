"""How a participant's tables came to be, step by step; run by :func:`veilsum_node.database.migrate`."""

HEAD = "0008"
"""The last script."""
