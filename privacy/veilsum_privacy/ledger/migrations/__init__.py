"""How the ledger's tables came to be, step by step; run by :func:`veilsum_node.database.migrate`."""

HEAD = "0003"
"""The last script."""

COMPONENT = "ledger"
PACKAGE = __name__
