"""Repairs and forgets: takes back lost leases, prunes by retention, says which workers live."""
