"""Rejected requests: kept with their cause, without credentials, to be released."""
