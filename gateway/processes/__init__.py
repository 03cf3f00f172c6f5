"""Put the parts of each process together: serve, worker, probes."""
