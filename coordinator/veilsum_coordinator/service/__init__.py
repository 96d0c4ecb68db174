"""The gRPC services: thin translations between the wire and the hub."""
