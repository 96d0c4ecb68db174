"""What finished studies leave at the coordinator: their proofs, and models and projections that later studies name."""
