"""HTTP plumbing that knows nothing of webhooks: protocol, limits, deadlines, outbound client."""
