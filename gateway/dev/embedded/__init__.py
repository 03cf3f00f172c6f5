"""Embedded Postgres and Redis (or Valkey) servers, for development and for tests."""

from gateway.dev.embedded.binaries import BinaryPaths
from gateway.dev.embedded.engines import Postgres, Redis

__all__ = ["BinaryPaths", "Postgres", "Redis"]
