"""What methods are made of: their base and the federation they run on, and steps that several of them share.

A method itself is one file in ``methods``, read from top to bottom: what it declares, what it runs, what it yields. Something
comes here when a second method needs it. Pure mathematics is in ``veilsum_aggregation``.
"""
