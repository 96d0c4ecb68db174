"""What every process of veilsum is, whatever its role: typed errors, configuration, identities, database, logs, metrics.

Here live the parts that know no study: canonical JSON, certificates and TLS, configuration files with their overrides, the
database with its faults and migrations, state locks, logs, health, the metrics listener, the transport to a coordinator.
What computes on records, counts epsilon or speaks of studies belongs in ``veilsum_privacy`` or above; it is not imported.
"""
