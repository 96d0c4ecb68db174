"""The boundary between a site's processes: which messages cross it, in which form, bounded by what.

:mod:`.encoding` says and reads messages, :mod:`.front` is the table of those between guard and front, :mod:`.framing` carries
them between processes, :mod:`.calls` is the one interface to both a process and the same code in this one. Nothing here
imports gRPC, protobuf, torch or a reader of data.
"""
