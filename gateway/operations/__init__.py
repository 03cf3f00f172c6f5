"""What people do: replay, discard, bulk, pause, retention, reconcile, alerts, status."""
