"""Measurements that anyone can rerun: `make bench`. Ratios in one run, since machines are noisy."""
