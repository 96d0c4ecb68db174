"""From here on a ledger may hold people's decisions, what expired, and changes of policy.

No table changes. What the number does is that older software, which knows no such entries, refuses to write behind them.
"""

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    pass
