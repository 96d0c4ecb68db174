"""Epsilon of what was released: Renyi curves, composed privacy losses, and the prices of tasks and studies."""
