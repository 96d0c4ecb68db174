"""The tables of versions 0.1 and 0.2, where the next script begins; this one never runs, for new tables are made at once."""

revision = "0002"
down_revision = None
