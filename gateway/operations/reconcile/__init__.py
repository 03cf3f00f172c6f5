"""Reconciliation: compare the provider's list of sent events with the ledger,
and recover missing ones.
"""
