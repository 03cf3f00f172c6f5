"""More load than can be carried, and clients that mean harm."""
