"""The truth in Postgres: events, deliveries, attempts, and every move between states."""
