"""The mechanism that keeps records private, without any network: from a study's declaration to a noised, masked sum.

``study`` says what was agreed, ``tasks`` and ``training`` what is computed of each record. ``mechanism`` clips and adds exact
noise, ``computation`` puts these together at a site, ``securesum`` masks and encrypts. ``accounting`` counts epsilon,
``ledger`` limits and proves it, ``dossier`` prints that; ``results`` holds what a study yields, with its proof. Processes,
files of configuration and databases are in ``veilsum_node``, roles in ``veilsum_participant`` and ``veilsum_coordinator``.
"""
