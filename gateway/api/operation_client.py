"""Run operations for a command: on the ledger itself, or through a remote gateway."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from gateway.api.http import ACTOR_HEADER
from gateway.api.operation import PREFIX, Operation, Params
from gateway.base.errors import CommandFailed, ConfigInvalid, NotFound, Problem, StorageUnavailable
from gateway.base.secrets import Secret
from gateway.config.project import database_url
from gateway.config.settings import Settings
from gateway.ledger.connection import Connection, connect
from gateway.ledger.migrate import check_version
from gateway.operations.context import OperationContext
from gateway.queue.wake_ups import wake

ANSWER_S: Final = 60.0
"""A count of more than a hundred thousand dead letters takes seconds."""

P = TypeVar("P", bound=Params)
R = TypeVar("R")


class OperationClient(Protocol):
    """Runs operations."""

    async def ask(self, operation: Operation[P, R], params: P) -> R:
        """Run the operation. Raises a GatewayError with the reason if it fails."""


def open_desk(
    settings: Settings, url: str | None, actor: str
) -> AbstractAsyncContextManager[OperationClient]:
    """Open a desk for the gateway at the URL, or for the ledger of the settings without one."""
    return _ledger(settings, actor) if url is None else _remote(settings, url, actor)


class LocalOperationClient:
    """Runs operations in this process."""

    def __init__(self, office: OperationContext) -> None:
        self.office = office

    async def ask(self, operation: Operation[P, R], params: P) -> R:
        return await operation.perform(self.office, params)


@asynccontextmanager
async def _ledger(settings: Settings, actor: str) -> AsyncIterator[LocalOperationClient]:
    connection: Connection = await connect(
        database_url(settings), name="gateway command", command_timeout_s=ANSWER_S
    )

    async def tell(delivery_ids: Sequence[int]) -> None:
        await wake(settings, delivery_ids)

    try:
        await check_version(connection)
        yield LocalOperationClient(
            OperationContext(settings=settings, ledger=connection, actor=actor, wake=tell)
        )
    finally:
        await connection.close()


class RemoteOperationClient:
    """Sends operations to the Admin API of a remote gateway."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def ask(self, operation: Operation[P, R], params: P) -> R:
        given = params.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        path = operation.path.replace(":path", "")
        for name in operation.in_path:
            path = path.replace(f"{{{name}}}", quote(str(given.pop(name)), safe=""))
        sent = {"json": given} if operation.in_body else {"params": given}
        try:
            answer = await self._http.request(operation.method, path.lstrip("/"), **sent)  # type: ignore[arg-type]
        except httpx.HTTPError as error:
            where = self._http.base_url.host
            raise StorageUnavailable(f"the gateway at {where} does not answer: {error}") from error
        if answer.is_success:
            return _read(operation, answer)
        raise _refusal(answer)


def _read(operation: Operation[Any, R], answer: httpx.Response) -> R:
    try:
        value: R = TypeAdapter(operation.result).validate_json(answer.content)
    except ValidationError:
        raise CommandFailed(
            f"the gateway's answer to {operation.name} cannot be read: "
            "is it the same version as this command?"
        ) from None
    return value


def _refusal(answer: httpx.Response) -> CommandFailed | StorageUnavailable:
    try:
        told = answer.json()
        detail = str(told.get("detail") or told["error"])
    except (ValueError, KeyError, AttributeError):
        detail = f"status {answer.status_code}"
    match answer.status_code:
        case 401:
            return CommandFailed("the gateway refused the token: see GATEWAY_ADMIN_TOKEN")
        case 404 if "detail" not in answer.text:
            return CommandFailed("there is no Admin API: it is off without GATEWAY_ADMIN_TOKEN")
        case 404:
            return NotFound(detail)
        case 503:
            return StorageUnavailable(f"the gateway says: {detail}")
    return CommandFailed(detail)


@asynccontextmanager
async def _remote(settings: Settings, url: str, actor: str) -> AsyncIterator[RemoteOperationClient]:
    token = _token(settings)
    headers = {
        "authorization": f"Bearer {token.reveal().decode()}",
        ACTOR_HEADER: actor.encode("ascii", "replace").decode(),
    }
    base = httpx.URL(url.rstrip("/") + PREFIX + "/")
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=ANSWER_S) as http:
        yield RemoteOperationClient(http)


def _token(settings: Settings) -> Secret:
    if settings.admin_token is None:
        missing = Problem(
            file="environment",
            key="GATEWAY_ADMIN_TOKEN",
            found="nothing",
            expected="the token of the gateway that --url names",
        )
        raise ConfigInvalid([missing])
    return Secret(settings.admin_token.get_secret_value().encode())
