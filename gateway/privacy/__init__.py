"""Encryption and redaction."""
