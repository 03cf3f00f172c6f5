"""Explain failed TLS handshakes."""

import ssl

from gateway.base.errors import causes


def explain(error: BaseException) -> str | None:
    """Return why no TLS connection was made, or None if the error is not about TLS."""
    cause = next((one for one in causes(error) if isinstance(one, ssl.SSLError)), None)
    if cause is None:
        return None
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {cause.verify_message.rstrip('.')}"
    reason = (cause.reason or "the handshake failed").replace("_", " ").lower()
    return f"no encrypted connection could be made: {reason} (does it speak TLS at all?)"
