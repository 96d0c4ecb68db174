"""The numbers behind accounting: Renyi curves and composed privacy losses of Gaussian mechanisms."""
