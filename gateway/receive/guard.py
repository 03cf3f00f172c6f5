"""Check the bearer tokens of queues, of the Admin API and of /metrics, and limit guesses."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from prometheus_client import Counter
from pydantic import SecretStr
from starlette.requests import Request
from starlette.types import Scope

from gateway.base.secrets import Secret, find_borne
from gateway.config.settings import Settings
from gateway.http.limits import Limiters, RejectionLimiter
from gateway.receive import answers
from gateway.receive.answers import Answer


class Credential(NamedTuple):
    """The tokens that an endpoint accepts, and the limiter of guesses at them."""

    tokens: Sequence[bytes]
    limiter: RejectionLimiter


def check_bearer(
    scope: Scope, authorization: str | None, accepted: Sequence[Credential]
) -> Answer | None:
    """Return None if the request bears an accepted token, or else the response to it.

    An address that is known for the same token that it presents is always let in. Otherwise, after
    too many wrong tokens even a correct one is rejected for a moment: guessing would be as fast as
    before. A wrong token is a guess at everything that the endpoint accepts, and so is a malformed
    Authorization header. A request without the header (None), such as that of a browser or of a
    health check, is not a guess.
    """
    # Compare the tokens even if the answer is 429: its response time must not show whether a token
    # is correct.
    known = [one.limiter.knows(scope) for one in accepted]
    shown = [find_borne(authorization or "", one.tokens) is not None for one in accepted]
    is_known_holder = any(a and b for a, b in zip(known, shown, strict=True))
    if not is_known_holder:
        if any(one.limiter.are_over(scope) for one in accepted):
            return answers.TOO_MANY_REJECTED
        if not any(shown):
            guessed = () if authorization is None else accepted
            for one in guessed:
                one.limiter.refused(scope)
            return answers.UNAUTHORIZED
    for one, is_shown in zip(accepted, shown, strict=True):
        if is_shown:
            one.limiter.verified(scope)
    return None


class TokenGuard:
    """Check the tokens of the Admin API and of /metrics, and count rejections."""

    def __init__(self, limiters: Limiters, refused: Counter) -> None:
        self._limiters = limiters
        self._refused = refused

    def refusal(self, request: Request, *tokens: Secret) -> Answer | None:
        """Return None if the request bears one of the tokens, or else the response to it."""
        accepted = [Credential((token.reveal(),), self._limiters.of(token)) for token in tokens]
        authorization = request.headers.get("authorization")
        refusal = check_bearer(request.scope, authorization, accepted)
        if refusal is answers.TOO_MANY_REJECTED:
            self._refused.labels("TOO_MANY_REFUSED").inc()
        elif refusal is not None:
            self._refused.labels("NO_TOKEN" if authorization is None else "UNAUTHORIZED").inc()
        return refusal


def metrics_guard(settings: Settings, guard: TokenGuard) -> Callable[[Request], Answer | None]:
    """Return the check for /metrics, which is open if no token is configured."""
    given = (settings.metrics_token, settings.admin_token, settings.read_token)
    tokens = [token for token in map(secret_of, given) if token is not None]
    return lambda request: guard.refusal(request, *tokens) if tokens else None


def secret_of(token: SecretStr | None) -> Secret | None:
    return None if token is None else Secret(token.get_secret_value().encode())
