"""Repairs and retention: takes back lost leases, prunes expired data, lists the live workers."""
