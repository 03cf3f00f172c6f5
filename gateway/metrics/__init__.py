"""What processes count and measure of themselves and of the ledger, for Prometheus."""
