"""HTTP in: the endpoint, its limits, the acknowledgement."""
