"""Studies on simulated sites in one process, with and without encryption."""
