"""The web console: pages over the same operations as the commands and the Admin API."""
