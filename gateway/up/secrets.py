"""Development secrets and tokens for the routes of an `up`."""

from gateway.development import (
    BEARER_PREFIX,
    SECRETS_FILE,
    SIGNING_PREFIX,
    development_secrets,
)
from gateway.routes import Config
from gateway.settings import Settings


def make_up_secrets(
    settings: Settings, config: Config, variables: dict[str, str]
) -> tuple[str, ...]:
    """A secret for every reference that leads nowhere; the variables then say where they are."""
    made_up: dict[str, str] = {}
    for prefix, is_queue in ((SIGNING_PREFIX, False), (BEARER_PREFIX, True)):
        routes = [route for route in config.routes if route.provider.is_queue is is_queue]
        references = [str(ref) for route in routes for ref in route.secrets]
        made_up |= development_secrets(settings.data_dir, references, variables, prefix=prefix)
    if made_up:
        variables["GATEWAY_DEV_SECRETS"] = str((settings.data_dir / SECRETS_FILE).absolute())
    return tuple(made_up)
