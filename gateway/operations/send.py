"""Send signed sample requests to a gateway, like a provider."""

import asyncio
import os
import shlex
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import httpx

from gateway.base.errors import BadPayload, CommandFailed, RequestRejected
from gateway.base.problems import Unexpected
from gateway.base.secrets import Secret, SecretRef, SecretUnusable, resolve
from gateway.client import Client, Published, Refused, Unavailable
from gateway.config.project import load_first_secret
from gateway.config.routes import Config, Route, load_config
from gateway.config.settings import Settings
from gateway.providers.provider import Signed
from gateway.providers.publish import read_payload
from gateway.providers.samples import make_sample

GIVE_UP_AFTER_S: Final = 15.0
"""A person waits for the result: time for one retry after the gateway has asked to slow down."""


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
    """Publish with a token of the queue, until the job is known to be durable.

    Raises CommandFailed.
    """
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


AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The response to one request."""

    status: int
    body: str
    ms: float

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Signs and sends samples with the route's own secret."""

    route: Route
    secret: Secret
    type: str
    body: bytes | None
    url: str
    public_url: str | None = None
    """The URL that senders use, if it is not the URL at which this command reaches the gateway."""

    @property
    def doubt(self) -> str | None:
        """A known reason why the gateway may reject the request, or None."""
        public = self.public_url
        if not self.route.provider.signs_url or public is None or public == self.url.rstrip("/"):
            return None
        return (
            f"{self.route.provider.name} signs the URL: signed is {public}{self.route.path}, as the"
            f" gateway verifies it, though it is sent to {self.url}"
        )

    async def send(self, count: int) -> AsyncIterator[Sent]:
        """Send `count` requests, each a new sample, some of them concurrently."""
        limit = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(timeout=30) as client:

            async def one() -> Sent:
                async with limit:
                    return await self._post(client)

            for answer in asyncio.as_completed([one() for _ in range(count)]):
                yield await answer

    def sign(self) -> Signed:
        """Sign a new sample, or the given body. Raises CommandFailed."""
        provider, now = self.route.provider, datetime.now(UTC)
        try:
            sample = make_sample(provider, self.type, now=now)
            body = sample.body if self.body is None else self.body
            return provider.sign(
                body,
                secret=self.secret.reveal(),
                id=sample.id,
                type=self.type,
                now=now,
                url=self._called,
            )
        except Unexpected as error:  # the secret is a public key, so the body is not the reason
            raise CommandFailed(
                f"cannot sign for {self.route.name}: found {error.found}; expected"
                f" {error.expected} (--secret env:NAME or file:/path says where it is)"
            ) from None
        except RequestRejected as error:
            raise CommandFailed(f"this body cannot be signed: {error.reason}") from error
        except ValueError as error:
            raise CommandFailed(str(error)) from error

    @property
    def _called(self) -> str:
        return (self.public_url or self.url.rstrip("/")) + self.route.path

    async def _post(self, client: httpx.AsyncClient) -> Sent:
        signed = self.sign()
        # The signer may add parameters to the query.
        target = self.url.rstrip("/") + self.route.path + signed.url.removeprefix(self._called)
        started = time.perf_counter()
        try:
            answer = await client.post(target, content=signed.body, headers=signed.headers)
        except (httpx.UnsupportedProtocol, httpx.InvalidURL, UnicodeError) as error:
            raise CommandFailed(
                f"--url: found {self.url!r}; expected http://host:port or https://host"
            ) from error
        except httpx.HTTPError as error:
            raise CommandFailed(
                f"{target} does not answer: {error or type(error).__name__} "
                "(is the gateway running? `gateway up` starts one)"
            ) from error
        ms = (time.perf_counter() - started) * 1000
        return Sent(status=answer.status_code, body=answer.text.strip(), ms=ms)


def make_sender(
    settings: Settings,
    route_name: str,
    type: str,
    *,
    body: Path | None,
    url: str,
    secret: str | None = None,
) -> Sender:
    """Build the sender, and check everything that can be wrong before anything is sent."""
    config = load_config(settings.config)
    route = next((r for r in config.doors if r.name == route_name), None)
    if route is None:
        if any(r.name == route_name for r in config.routes):
            raise CommandFailed(f"{route_name!r} is a queue: see `gateway publish`")
        known = ", ".join(r.name for r in config.doors)
        raise CommandFailed(
            f"there is no route {route_name!r} in {settings.config}: it has {known}"
        )
    sender = Sender(
        route=route,
        secret=_secret(settings, config, route, secret),
        type=type,
        body=None if body is None else _read(body),
        url=url,
        public_url=settings.public_url,
    )
    sender.sign()
    return sender


def _secret(settings: Settings, config: Config, route: Route, reference: str | None) -> Secret:
    if reference is not None:
        return _given(reference)
    return load_first_secret(settings, config, route)


def _given(reference: str) -> Secret:
    try:
        return Secret(resolve(SecretRef.parse(reference), os.environ, {}))
    except (Unexpected, SecretUnusable) as error:
        found, expected = error.found, error.expected
    raise CommandFailed(f"--secret: found {found}; expected {expected}")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CommandFailed(f"{file}: cannot be read: {error.strerror}") from error
