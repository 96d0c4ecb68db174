"""From here on every entry holds random bytes, by which its hash hides what it says.

No table changes. What the number does is that older software, whose entries have none, refuses to write behind those that do.
"""

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    pass
