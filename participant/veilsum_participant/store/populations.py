"""What outlives the studies on a population: cohorts of its strict sums, answers to what its budget bears."""

from sqlalchemy import Boolean, Column, Integer, LargeBinary, String, Table, Text

from veilsum_participant.store.tables import METADATA

COHORTS = Table(
    "participant_cohort",
    METADATA,
    Column("context", LargeBinary(32), primary_key=True),
    Column("study", LargeBinary(32), nullable=False),
    Column("dataset", String(64), nullable=False),
    Column("population", String(64), nullable=False),
    Column("members", Text),  # JSON: name -> key fingerprint; null where a restored backup does not know them
)

ANSWERS = Table(
    "participant_answer",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("fits", Boolean, primary_key=True),  # whether the budget bore the study
    Column("analyst", String(64), nullable=False),
    Column("population", String(64), nullable=False),
    Column("time", Integer, nullable=False),
)
