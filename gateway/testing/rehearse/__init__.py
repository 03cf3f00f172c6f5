"""Asks of each handler whether its body stands to be run twice."""

from gateway.testing.rehearse.company import Request, rehearse
from gateway.testing.rehearse.report import Report, Verdict

__all__ = ["Report", "Request", "Verdict", "rehearse"]
