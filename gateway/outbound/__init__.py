"""HTTP out, to people's own services: where it may go, and what is read of the answer."""
