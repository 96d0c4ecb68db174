"""A hostile analyst: studies that a site may well accept, chosen so that what the site does tells of a record.

``PYTHONPATH=tests python -m analyst --examples 100000 --seed 0`` tries that many. Each example is one task: a task of some
method's study with a few of its numbers, names, bounds or arrays changed over their whole range, subnormal to beyond every
float. Nothing of a participant is replaced.

With ``--direct`` each example is a task with a broadcast and records, computed without the guard around it (:mod:`.direct`).
"""
