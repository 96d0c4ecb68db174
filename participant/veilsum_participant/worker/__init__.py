"""Processes that read a dataset and compute on records, and how a guard speaks to them.

:mod:`.remote` and :mod:`.starting` are the guard's side; the mains are the other one.
"""
