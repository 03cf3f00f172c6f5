"""What a failed handshake means, in words."""

import ssl


def explain(error: BaseException) -> str | None:
    """Why no encrypted connection was made; None where it was not for that."""
    while not isinstance(error, ssl.SSLError):
        following = error.__cause__ or error.__context__
        if following is None:
            return None
        error = following
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message.rstrip('.')}"
    reason = (error.reason or "the handshake failed").replace("_", " ").lower()
    return f"no encrypted connection could be made: {reason} (does it speak TLS at all?)"
