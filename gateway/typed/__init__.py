"""Payloads as the providers' own libraries type them; each imports its library, so late."""
