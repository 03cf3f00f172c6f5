"""Attacks the gateway on purpose, from a seed, and counts what was lost and what came twice."""
