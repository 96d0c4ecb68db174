"""The tables of version 0.1, where the next script begins; this one never runs, for new tables are made at once."""

revision = "0004"
down_revision = None
