"""A fuzzer over everything that is read from outside: ``PYTHONPATH=tests python -m fuzzing TARGET --seconds 600``.

A target makes inputs of a seed (random, mutated from valid ones, or built along their structure) and reads them with the
product's own code. Allowed ends are a value and the target's typed errors. Anything else is a finding: another exception, a
dead process, an input that takes too long or takes too much memory, memory or descriptors that grow. What was found once lies
in ``tests/data/fuzzing`` and is read again by every run of the tests.
"""
