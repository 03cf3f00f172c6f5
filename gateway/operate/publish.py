"""Publishes a job to a gateway, as a program of the user's would."""

import shlex
from datetime import timedelta
from typing import Final

from gateway.client import Client, Published, Refused, Unavailable
from gateway.errors import BadPayload, CommandFailed
from gateway.project import load_first_secret
from gateway.providers.job_request import read_payload
from gateway.routes import load_config
from gateway.settings import Settings

GIVE_UP_AFTER_S: Final = 15.0
"""A person waits: once more after the gateway has asked for patience."""


async def publish_job(
    settings: Settings,
    queue: str,
    document: bytes,
    *,
    url: str,
    key: str | None,
    type: str | None,
    delay: timedelta,
) -> Published:
    """With the queue's own token, until it is known to be durable. Raises CommandFailed."""
    token = _token(settings, queue)
    try:
        payload = read_payload(document)
    except BadPayload as error:
        raise CommandFailed(f"--payload: {error.reason}") from None
    try:
        async with Client(url, token=token, give_up_after=GIVE_UP_AFTER_S) as client:
            return await client.publish(queue, payload, key=key, type=type, delay=delay)
    except ValueError as error:
        raise CommandFailed(f"--url: {error}") from None
    except Refused as error:
        raise CommandFailed(f"not published: {error}") from None
    except Unavailable as error:
        raise CommandFailed(
            f"{error} (is the gateway running? `gateway up` starts one); the job may be there all"
            f" the same: publish it again with --key {shlex.quote(error.key or '')}"
        ) from None


def _token(settings: Settings, queue: str) -> str:
    config = load_config(settings.config)
    route = next((r for r in config.open_queues if r.name == queue), None)
    if route is None:
        known = ", ".join(r.name for r in config.open_queues) or "none"
        raise CommandFailed(
            f"there is no queue {queue!r} with `tokens` in {settings.config}: it has {known}"
        )
    return load_first_secret(settings, config, route).reveal().decode()
