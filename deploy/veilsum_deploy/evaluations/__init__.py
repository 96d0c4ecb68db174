"""Evaluations that need no federation: ``python -m veilsum_deploy.evaluations NAME``; study files are elsewhere."""
