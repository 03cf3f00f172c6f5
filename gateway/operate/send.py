"""Posts signed samples to a gateway, as a provider would."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx

from gateway.errors import CommandFailed
from gateway.project import load_first_secret
from gateway.routes import Route, load_config
from gateway.samples import make_sample
from gateway.secrets import Secret
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

    async def send(self, count: int) -> AsyncIterator[Sent]:
        """Sends so many, a few at once, each a new sample."""
        limit = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(timeout=30) as client:

            async def one() -> Sent:
                async with limit:
                    return await self._post(client)

            for answer in asyncio.as_completed([one() for _ in range(count)]):
                yield await answer

    async def _post(self, client: httpx.AsyncClient) -> Sent:
        provider, now = self.route.provider, datetime.now(UTC)
        sample = make_sample(provider.name, self.type, now=now)
        body = sample.body if self.body is None else self.body
        target = self.url.rstrip("/") + self.route.path
        signed = provider.sign(
            body, secret=self.secret.reveal(), id=sample.id, type=self.type, now=now, url=target
        )
        started = time.perf_counter()
        try:
            answer = await client.post(signed.url, content=signed.body, headers=signed.headers)
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
    settings: Settings, route_name: str, type: str, *, body: Path | None, url: str
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
    secret = load_first_secret(settings, config, route)
    try:
        make_sample(route.provider.name, type, now=datetime.now(UTC))
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    return Sender(
        route=route,
        secret=secret,
        type=type,
        body=None if body is None else _read(body),
        url=url,
    )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CommandFailed(f"{file}: cannot be read: {error.strerror}") from error
