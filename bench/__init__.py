"""Measurements that anyone can rerun: `make bench`."""
