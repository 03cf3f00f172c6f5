"""Runs deliveries: lease, context, handler, settle."""
