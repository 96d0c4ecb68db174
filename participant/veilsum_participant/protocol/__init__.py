"""The site's part of the protocol: approval, enrolment, contributions, receipts and consent, cohorts and limits, recovery.

Messages come in as values and answers go out; every rule that guards the records is here. What dials is in ``session``, what
reads records in ``data``.
"""
