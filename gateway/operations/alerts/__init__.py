"""Alerts: find problems that need attention, decide on notifications, and send each once."""
