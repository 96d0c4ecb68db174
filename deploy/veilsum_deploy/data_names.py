"""The names of data that simulations know, which the command line's help lists without loading what reads them."""

PACKAGED = ("breast-cancer", "digits")
"""Data sets that need no file."""

COLLECTIONS = ("digits4", "office-caltech10", "heart-disease", "mnist")
"""Collections by name; each is read from a folder that holds its published files."""
