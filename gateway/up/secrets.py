"""Development secrets and tokens for the routes of an `up`."""

from gateway.development import SECRETS_FILE, development_secrets
from gateway.routes import Config
from gateway.settings import Settings


def make_up_secrets(
    settings: Settings, config: Config, variables: dict[str, str]
) -> tuple[str, ...]:
    """A secret for every reference that leads nowhere; the variables then say where they are."""
    made_up: dict[str, str] = {}
    for route in config.routes:
        references = [str(ref) for ref in route.secrets]
        made_up |= development_secrets(
            settings.data_dir, references, variables, make=route.provider.make_secret
        )
    if made_up:
        variables["GATEWAY_DEV_SECRETS"] = str((settings.data_dir / SECRETS_FILE).absolute())
    return tuple(made_up)
