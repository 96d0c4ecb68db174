"""The service that certifies people who log in with an organisation's identity provider (OpenID Connect)."""
