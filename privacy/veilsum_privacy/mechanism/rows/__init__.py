"""Rows by construction: what a record adds to a sum, as a graph of a closed list of primitives that the kernel evaluates.

A task is traced once, on symbols (:mod:`.symbols`): its code says what is computed and never meets a record. The graph
(:mod:`.graph`) is data: it can be stored, digested and shown. The kernel evaluates it on records, in blocks of one size
(:mod:`.evaluation`), and clips and adds what it gives (:mod:`.sums`). Every primitive (:mod:`.primitives`) maps one record's
values to one record's values and is total. So no task can join records, branch on one, fail on one, or keep anything of one.
"""
