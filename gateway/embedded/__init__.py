"""A real Postgres and a real Redis (or Valkey) of our own, for development and for tests."""

from gateway.embedded.binaries import Places
from gateway.embedded.postgres import Postgres
from gateway.embedded.redis import Redis

__all__ = ["Places", "Postgres", "Redis"]
