"""First drafts of a schema: of a data dictionary, or of records.

A draft takes no bound from a record, and no command accepts it before a person has completed it.
"""
