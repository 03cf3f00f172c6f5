"""The system of record in Postgres: events, deliveries, attempts, and every state transition."""
