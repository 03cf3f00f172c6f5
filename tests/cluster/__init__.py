"""Several machines: gateways, workers, a primary with its standby, and cuts between them."""
