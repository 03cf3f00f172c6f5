"""Senders described as data, in one notation for routes and for the catalogue."""
