"""Handlers of an imaginary shop: some must not be run twice, the others may be."""
