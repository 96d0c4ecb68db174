"""Using a study's result at a site: its features, its alignment, its classifier, measured on records that stay here."""
