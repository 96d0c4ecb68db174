"""The coordinator's process: the gRPC services, thin translations between the wire and the hub, and the hub itself.

``coordination`` and ``studies`` are what participants and analysts call, ``hub`` what both reach: one lock around the table of
studies. What is fetched of it (``fetching``), shown of it (``listing``), and how a study ends (``endings``) stand beside it.
"""
