"""What the consoles have in common: pages for people, on loopback or a Unix socket, that begin with a log-in.

It needs the extra ``console`` and knows nothing of studies; :mod:`veilsum_participant.console` and
:mod:`veilsum_coordinator.console` bring the pages. Nothing here listens unless its own command was started.
"""
