"""The dashboard: pages over the same operations that the commands and the Admin API have."""
