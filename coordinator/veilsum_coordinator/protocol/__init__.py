"""The protocol's rules at the coordinator, without input or output: a study's machine, its members, rounds and directives.

Calls come in as values and directives go out; clocks and randomness are arguments. What is written to disk is in ``storage``,
what listens and runs threads in ``service``.
"""
