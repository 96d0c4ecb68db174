"""Logging in with an organisation's identity provider (OpenID Connect): the person's side."""
