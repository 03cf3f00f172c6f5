"""Redaction: fields of a payload that people do not see, or that are not even stored."""

from gateway.redaction.paths import FieldPath
from gateway.redaction.redaction import REDACTED, RedactAt, Redaction

__all__ = ["REDACTED", "FieldPath", "RedactAt", "Redaction"]
