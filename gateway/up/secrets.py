"""Development secrets, tokens and keys for the routes of an `up`."""

from datetime import UTC, datetime
from secrets import token_hex

from gateway.development import SECRETS_FILE, development_secrets
from gateway.providers.provider import make_secret
from gateway.routes import Config, valid_references
from gateway.sealing import KEY_BYTES
from gateway.settings import Settings


def make_up_secrets(
    settings: Settings, config: Config, variables: dict[str, str]
) -> tuple[str, ...]:
    """A secret for every reference that leads nowhere; the variables then say where they are."""
    made_up: dict[str, str] = {}
    for route in config.routes:
        references = valid_references([route], datetime.now(UTC))
        made_up |= development_secrets(
            settings.data_dir, references, variables, make=route.provider.make_secret
        )
        tokens = [] if route.verify_token is None else [str(route.verify_token)]
        made_up |= development_secrets(settings.data_dir, tokens, variables, make=make_secret)
    keys = [str(ref) for ref in (*config.keys, config.digest_key) if ref is not None]
    made_up |= development_secrets(
        settings.data_dir, keys, variables, make=lambda: token_hex(KEY_BYTES)
    )
    # Also where none was made up: by it the children know that this is development.
    variables["GATEWAY_DEV_SECRETS"] = str((settings.data_dir / SECRETS_FILE).absolute())
    return tuple(made_up)
