"""Development secrets, tokens and keys for the routes of an `up`."""

from datetime import UTC, datetime
from secrets import token_hex

from gateway.config.development import SECRETS_FILE, development_secrets
from gateway.config.routes import Config, valid_references
from gateway.config.settings import Settings
from gateway.privacy.encryption import KEY_BYTES
from gateway.providers.provider import make_secret


def make_up_secrets(
    settings: Settings, config: Config, variables: dict[str, str]
) -> tuple[str, ...]:
    """Make a secret for every reference that cannot be resolved, and set the
    variables that locate them.
    """
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
    # Set it even if no secret was made: the child processes recognise development by it.
    variables["GATEWAY_DEV_SECRETS"] = str((settings.data_dir / SECRETS_FILE).absolute())
    return tuple(made_up)
