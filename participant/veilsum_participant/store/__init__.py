"""What a participant must remember across a crash.

One module a subject: studies with their keys; attempts with their payloads; studies that wait for the operator's word; what
was kept or trained for later rounds; how much of the coordinator's mirror was seen; and what outlives studies on a population.

The tables lie in the file of the site's ledger, so that a payload and its reservation, or a consent and its charge, are one
transaction. The migrations make them. These modules store and find; what may be stored when is decided in
:mod:`veilsum_participant.protocol`.
"""
