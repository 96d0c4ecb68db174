"""A participant's session with its coordinator: the client's loop, the channel, workers, renewed certificates."""
