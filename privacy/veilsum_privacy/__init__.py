"""The mechanism that keeps records private, without any network: from a study's declaration to a noised, masked sum.

``study`` says what was agreed; ``tasks`` and ``training`` what is computed of each record; ``mechanism`` clips and adds exact
noise; ``computation`` puts these together at a site; ``securesum`` masks and encrypts; ``accounting`` counts epsilon; ``ledger``
limits and proves it, and ``dossier`` prints that; ``results`` holds what a study yields, with its proof. What dials, listens,
reads configurations or opens databases is in ``veilsum_node``; roles are in ``veilsum_participant`` and ``veilsum_coordinator``.
"""
