"""Small faults planted in the code that guards records, one at a time: each must be found by a test, or be harmless.

The command is ``PYTHONPATH=tests python -m mutants``; :mod:`.judges` says which tests judge which module.
"""
