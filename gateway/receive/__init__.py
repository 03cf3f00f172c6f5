"""From a request to its claim and the answer."""
