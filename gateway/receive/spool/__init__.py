"""Keeps acknowledged events on disk while the ledger is away."""
