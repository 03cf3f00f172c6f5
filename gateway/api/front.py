"""The Admin API of a `serve` process, where there is a token for it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from starlette.requests import Request
from starlette.routing import BaseRoute

from gateway.api.guard import TokenGuard
from gateway.api.http import routes
from gateway.api.office import Background, Office
from gateway.api.operations import OPERATIONS
from gateway.ledger.connection import Pool, open_pool
from gateway.project import Project, database_url
from gateway.receive.answers import Answer
from gateway.secrets import Secret
from gateway.settings import Settings

CONNECTIONS: Final = 4
"""However many people look at once, claims find room in Postgres."""
COMMAND_S: Final = 30.0


class FrontOffice:
    """Takes operations over HTTP, and goes on with long ones."""

    def __init__(
        self,
        project: Project,
        *,
        wake: Callable[[Sequence[int]], Awaitable[object]],
        guard: TokenGuard,
    ) -> None:
        self._project = project
        self._wake = wake
        self._background = Background()
        self._pool: Pool | None = None
        token = project.settings.admin_token
        self.routes: list[BaseRoute] = []
        """None without a token."""
        if token is not None:
            secret = Secret(token.get_secret_value().encode())
            queues = [queue.name for queue in project.config.open_queues]
            self.routes = routes(
                OPERATIONS, token=secret, guard=guard, open_office=self._office, queues=queues
            )

    def take(self, project: Project) -> None:
        """One whose secrets were read anew."""
        self._project = project

    async def open(self) -> None:
        if self.routes:
            self._pool = await open_pool(
                database_url(self._project.settings),
                name="gateway api",
                size=CONNECTIONS,
                command_timeout_s=COMMAND_S,
            )

    async def close(self) -> None:
        """Ends what goes on, too."""
        await self._background.stop()
        if self._pool is not None:
            self._pool.terminate()

    async def _tell(self, delivery_ids: Sequence[int]) -> None:
        if delivery_ids:
            await self._wake(delivery_ids)

    def _office(self, actor: str) -> Office:
        assert self._pool is not None  # noqa: S101 (requests come after the start)
        return Office(
            settings=self._project.settings,
            ledger=self._pool,
            actor=actor,
            wake=self._tell,
            background=self._background,
            loaded=self._project,
        )


def metrics_guard(settings: Settings, guard: TokenGuard) -> Callable[[Request], Answer | None]:
    """Who may not read /metrics: nobody, unless there is a token to ask for."""
    given = (settings.metrics_token, settings.admin_token)
    tokens = [Secret(token.get_secret_value().encode()) for token in given if token is not None]
    return lambda request: guard.refusal(request, *tokens) if tokens else None
