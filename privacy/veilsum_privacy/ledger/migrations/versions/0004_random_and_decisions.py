"""From version 0.2 on: every entry holds random bytes, and a ledger may hold people's decisions and changes of policy.

No table changes. What the number does is that older software, whose entries have no such bytes and which knows no such
entries, refuses to write behind them.
"""

revision = "0004"
down_revision = "0002"


def upgrade() -> None:
    pass
