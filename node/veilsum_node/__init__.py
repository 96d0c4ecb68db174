"""What every process of veilsum is, whatever its role: typed errors, configuration, identities, the database, logs and metrics.

Here live the parts that know no study: canonical JSON, certificates and TLS, files of configuration with their overrides, the
database with its faults and migrations, state locks, logging, health, the metrics listener, and the transport to a coordinator.
What computes on records, counts epsilon or speaks of studies belongs in ``veilsum_privacy`` or above. Nothing here imports them.
"""
