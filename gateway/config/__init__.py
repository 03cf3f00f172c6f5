"""What people write: settings, routes.yaml and the handlers that it names."""
