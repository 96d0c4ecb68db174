"""Training at a site: models, gradients of records with their clipped sums, and predictions. Nothing here adds noise."""
