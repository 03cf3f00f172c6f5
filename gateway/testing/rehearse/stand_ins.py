"""Stand-ins for `ctx.resources`: every call is recorded, and nothing is opened."""

import re
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from typing import Any, Final, Self, get_args, get_type_hints

import httpx

from gateway.testing.rehearse.outages import HTTP, RESOURCE, ReturnedResponse
from gateway.testing.rehearse.trace import Outage, RehearsedRun, current_run
from gateway.testing.rehearse.wire import REPEATABLE

HARMLESS: Final = re.compile(
    r"_*(?:(?:get|fetch|list|read|aread|find|search|retrieve|query|select|count|exists|is|has"
    r"|lookup|parse|decode|iter|aiter)(?:_.*)?"
    r"|head|options|ping|connect|connection|session|client|acquire|release|begin|open|close|aclose"
    r"|quit|login|cursor|json|dict|items|keys|values|result|wait|raise_for_status|with_options"
    r"|to_(?:dict|json|list|pydict|recursive_dict)|as_(?:dict|json|list)|model_dump(?:_json)?)"
)
"""Matches methods that, by their name, only read, prepare, or decode a response.

A word that may also name an action, such as `open` in `open_ticket`, matches only on its own.
"""

WELL: Final[Mapping[str, object]] = {
    "status_code": 200,
    "status": 200,
    "ok": True,
    "is_success": True,
    "is_error": False,
}
"""Attributes of a response that indicate success."""

KEYS: Final = ("idempotency_key", "idempotency_token", "dedup_key", "deduplication_id")
KEY_HEADER: Final = "idempotency-key"
SENDING: Final = frozenset({"get", "head", "options", "post", "put", "patch", "delete", "request"})
"""Methods of httpx clients that send one request and return its response."""


def make_stand_in(name: str, function: Callable[[], AsyncIterator[Any]]) -> "StandIn":
    """Return the stand-in for a resource.

    The requests of a resource that is annotated as an httpx client are answered like those of
    `ctx.http` when they fail.
    """
    try:
        yielded = get_args(get_type_hints(function).get("return"))
    except Exception:  # an annotation may be any text, such as a name only type checkers know
        yielded = ()
    kind = yielded[0] if yielded else None
    is_client = isinstance(kind, type) and issubclass(kind, httpx.AsyncClient | httpx.Client)
    return HttpStandIn(name) if is_client else StandIn(name)


class StandIn:
    """A resource, or an attribute of one."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __str__(self) -> str:
        return self._path

    def __getattr__(self, name: str) -> "StandIn":
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self._path}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _record(self._path, args, kwargs)
        return StandInAnswer(self._path)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class HttpStandIn(StandIn):
    """A resource that is an httpx client."""

    def __getattr__(self, name: str) -> StandIn:
        if name in SENDING:
            return HttpMethod(f"{self._path}.{name}")
        return super().__getattr__(name)


class HttpMethod(StandIn):
    """A method of an httpx client that sends one request."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        method = self._path.rpartition(".")[2].upper()
        if method == "REQUEST":
            method = str(args[0] if args else kwargs.get("method")).upper()
        run = current_run()
        outage = _record(self._path, args, kwargs, outages=HTTP, is_repeatable=method in REPEATABLE)
        if run is None:
            return StandInAnswer(self._path)
        response = _send(method, run, outage)
        return StandInAnswer(self._path) if outage is None else response


def _send(method: str, run: RehearsedRun, outage: Outage | None) -> httpx.Response:
    """Make a request that is answered in this process, so that `ctx.once` counts it."""

    def answer(_: httpx.Request) -> httpx.Response:
        if outage is not None and outage.error is not None:
            raise outage.error()
        if outage is not None and outage.status is not None:
            return ReturnedResponse(outage.status, run)
        return httpx.Response(200)

    with httpx.Client(transport=httpx.MockTransport(answer), trust_env=False) as client:
        return client.request(method, "https://resource.invalid")


class StandInAnswer(str):
    """The result of a call, or an attribute of it.

    It is a str that can be awaited, entered, called, indexed and stored.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return WELL.get(name, StandInAnswer(f"{self}.{name}"))

    def __call__(self, *args: Any, **kwargs: Any) -> "StandInAnswer":
        _record(self, args, kwargs)
        return self

    def __getitem__(self, key: Any) -> "StandInAnswer":
        return StandInAnswer(f"{self}.{key}")

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __await__(self) -> Generator[None, None, "StandInAnswer"]:
        return self
        yield

    async def __aiter__(self) -> AsyncIterator["StandInAnswer"]:
        return
        yield

    async def __aenter__(self) -> StandIn:
        return StandIn(str(self))

    async def __aexit__(self, *_: object) -> None: ...

    def __enter__(self) -> StandIn:
        return StandIn(str(self))

    def __exit__(self, *_: object) -> None: ...


def without_stand_ins(value: Any) -> Any:
    """Return the value with text in place of stand-ins, so that `ctx.once` can store it."""
    match value:
        case StandIn():
            return str(value)
        case dict():
            return {key: without_stand_ins(part) for key, part in value.items()}
        case list() | tuple():
            return [without_stand_ins(part) for part in value]
    return value


def _record(
    path: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    outages: tuple[Outage, ...] | None = None,
    is_repeatable: bool = False,
) -> Outage | None:
    """Record a call, and return how it fails, or None. `outages` are those of its response.

    Raises the error of a resource whose responses are unknown.
    """
    run = current_run()
    if run is None:
        return None
    is_write = HARMLESS.fullmatch(path.rpartition(".")[2]) is None
    said = [*map(_shown, args), *(f"{name}={_shown(value)}" for name, value in kwargs.items())]
    outage = run.call(
        f"ctx.resources.{path}(...)",
        ", ".join(said),
        is_write=is_write,
        is_repeatable=is_repeatable,
        key=_key(kwargs),
        outages=outages or (RESOURCE if is_write else ()),
    )
    if outages is None and outage is not None and outage.error is not None:
        raise outage.error()
    return outage


def _key(kwargs: Mapping[str, Any]) -> str | None:
    """Return the idempotency key, from an argument or from a header of a request, or None."""
    headers = kwargs.get("headers")
    if isinstance(headers, Mapping):
        named = {str(name).lower(): value for name, value in headers.items()}
        kwargs = {"idempotency_key": named.get(KEY_HEADER), **kwargs}
    return next((str(kwargs[name]) for name in KEYS if kwargs.get(name)), None)


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # the user's own class may raise any exception
        return type(value).__name__
