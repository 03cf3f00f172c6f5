"""Check that handlers are safe to run again."""

from gateway.testing.rehearse.findings import Report, Verdict
from gateway.testing.rehearse.runner import Request, rehearse

__all__ = ["Report", "Request", "Verdict", "rehearse"]
