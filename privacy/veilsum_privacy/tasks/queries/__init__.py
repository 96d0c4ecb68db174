"""Queries of the method "statistics": their language, what a record adds to the sum for each, what one record can change.

A query is public and says what is asked of columns of the schema. Nothing here reads a file, adds noise or knows a network:
the task (:mod:`veilsum_privacy.tasks.tables`) encodes records by it, the analyst computes sensitivity and weights from it, and
the coordinator reads the released blocks by it. What is made of the sums is :mod:`veilsum_aggregation`.
"""
