"""Logging in with an organisation's identity provider (OpenID Connect) for a certificate of some hours."""
