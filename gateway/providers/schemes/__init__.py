"""Senders described as data: one notation for routes and for the catalogue."""
