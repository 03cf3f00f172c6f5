"""Who has a token of the Admin API or of /metrics; whoever guesses is slowed down."""

from collections.abc import Callable

from prometheus_client import Counter
from pydantic import SecretStr
from starlette.requests import Request

from gateway.receive import answers
from gateway.receive.answers import Answer
from gateway.receive.limits import Strangers
from gateway.secrets import Secret, is_borne
from gateway.settings import Settings


class TokenGuard:
    """Counts wrong tokens by address, apart from refused webhooks: a sender is no operator."""

    def __init__(self, strangers: Strangers, refused: Counter) -> None:
        self._strangers = strangers
        self._refused = refused

    def refusal(self, request: Request, *tokens: Secret) -> Answer | None:
        """None for whoever has one of the tokens. After too many wrong ones not even the right one
        is looked at for a moment, or guessing would be as fast as before."""
        if self._strangers.are_over(request.scope):
            self._refused.labels("TOO_MANY_REFUSED").inc()
            return answers.NOT_LOOKED_AT
        if is_borne(request.headers.get("authorization", ""), tokens):
            self._strangers.verified(request.scope)
            return None
        self._strangers.refused(request.scope)
        self._refused.labels("UNAUTHORIZED").inc()
        return answers.UNAUTHORIZED


def metrics_guard(settings: Settings, guard: TokenGuard) -> Callable[[Request], Answer | None]:
    """Who may not read /metrics: nobody, unless there is a token to ask for."""
    given = (settings.metrics_token, settings.admin_token, settings.read_token)
    tokens = [token for token in map(secret_of, given) if token is not None]
    return lambda request: guard.refusal(request, *tokens) if tokens else None


def secret_of(token: SecretStr | None) -> Secret | None:
    return None if token is None else Secret(token.get_secret_value().encode())
