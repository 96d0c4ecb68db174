"""An organisation's OpenID Connect provider, as every service that people log in to asks it."""
