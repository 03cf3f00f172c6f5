"""Posts signed samples to a gateway, as a provider would."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx

from gateway.errors import CommandFailed, RequestRejected
from gateway.notation.problems import Unexpected
from gateway.project import load_first_secret
from gateway.providers.provider import Signed
from gateway.routes import Config, Route, load_config
from gateway.samples import make_sample
from gateway.secrets import Secret, SecretRef, SecretUnusable, resolve
from gateway.settings import Settings

AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request and its answer."""

    status: int
    body: str
    ms: float

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Signs with the route's own secret."""

    route: Route
    secret: Secret
    type: str
    body: bytes | None
    url: str
    public_url: str | None = None
    """What senders call, where that is not where the gateway is reached from here."""

    @property
    def doubt(self) -> str | None:
        """Why a gateway may refuse what is sent, where that can be told before."""
        public = self.public_url
        if not self.route.provider.signs_url or public is None or public == self.url.rstrip("/"):
            return None
        return (
            f"{self.route.provider.name} signs the URL: signed is {public}{self.route.path}, as the"
            f" gateway verifies it, though it is sent to {self.url}"
        )

    async def send(self, count: int) -> AsyncIterator[Sent]:
        """Sends so many, a few at once, each a new sample."""
        limit = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(timeout=30) as client:

            async def one() -> Sent:
                async with limit:
                    return await self._post(client)

            for answer in asyncio.as_completed([one() for _ in range(count)]):
                yield await answer

    def sign(self) -> Signed:
        """A new sample, or the given body, signed now. Raises CommandFailed."""
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
        except Unexpected as error:  # a public key: the body has nothing to do with it
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
        # With what the sender adds to the query.
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
    """Checks everything that can be wrong before anything is sent."""
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
