"""The services that a handler calls: requests and resources are recorded, answered, or failed."""

import re
import smtplib
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Self, get_args, get_type_hints

import httpx
import orjson

from gateway.base.errors import CommandFailed
from gateway.testing.outgoing import READS, STRIPE, StripeObjects, find_object
from gateway.testing.rehearse.trace import Outage, RehearsedRun, current_run

_SAID: Final = "made up by a rehearsal"

HTTP: Final = (
    Outage(words="answered 500", status=500),
    Outage(words="answered 401", status=401),
    Outage(words="answered 422", status=422),
    Outage(words="without a connection", error=lambda: httpx.ConnectError(_SAID)),
    Outage(words="timed out before it was sent", error=lambda: httpx.ConnectTimeout(_SAID)),
    Outage(words="answered 500 after it was done", status=500, is_received=True),
    Outage(
        words="timed out after it was sent",
        error=lambda: httpx.ReadTimeout(_SAID),
        is_received=True,
    ),
    Outage(
        words="broken off after it was sent",
        error=lambda: httpx.RemoteProtocolError(_SAID),
        is_received=True,
    ),
)
MAIL: Final = (
    Outage(words="answered 451", error=lambda: smtplib.SMTPDataError(451, _SAID.encode())),
    Outage(words="without a connection", error=lambda: ConnectionRefusedError(_SAID)),
    Outage(
        words="broken off after it was sent",
        error=lambda: smtplib.SMTPServerDisconnected(_SAID),
        is_received=True,
    ),
)
RESOURCE: Final = (
    Outage(words="without a connection", error=lambda: ConnectionRefusedError(_SAID)),
    Outage(
        words="broken off after it was sent",
        error=lambda: ConnectionResetError(_SAID),
        is_received=True,
    ),
)
"""The responses of a resource that is no HTTP client are unknown, so only its connection fails."""


class FailedResponse(httpx.Response):
    """An error response that records whether the handler reads its status."""

    def __init__(self, status: int, run: RehearsedRun) -> None:
        self._run = run
        error = {"code": f"rehearsed_{status}", "message": _SAID, "type": "api_error"}
        super().__init__(status, json={"error": error})

    @property
    def status_code(self) -> int:
        frame = sys._getframe(1)
        while frame.f_globals.get("__name__") == "httpx._models" and frame.f_back is not None:
            frame = frame.f_back
        if not frame.f_globals.get("__name__", "").startswith("httpx."):
            self._run.has_seen_status = True
        return self._status

    @status_code.setter
    def status_code(self, status: int) -> None:
        self._status = status


class ReturnedResponse(FailedResponse):
    """An error response of a client that may have to be awaited."""

    def __await__(self) -> Generator[None, None, Self]:
        return self
        yield


FIELDS: Final = frozenset({"method", "url", "status", "json"})
FORM: Final = 'a JSON list of {"method": "POST", "url": "https://...*", "status": 200, "json": {}}'
RANGES: Final = "expected a method such as POST, or *, and a status from 200 to 599"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenAnswer:
    """A response that the user has given for matching requests."""

    url: str
    """A glob, in which `*` matches any text."""
    method: str = "*"
    status: int = 200
    json: Any = None

    def fits(self, request: httpx.Request) -> bool:
        """Return whether this response applies to the request."""
        return self.method.upper() in (request.method, "*") and fits(request.url, self.url)


def fits(url: httpx.URL, glob: str) -> bool:
    """Compare a URL with a glob, as `outgoing.answer` does."""
    return str(url) == glob or fnmatchcase(str(url), glob)


def load_answers(file: Path) -> list[GivenAnswer]:
    """Read the responses from a file.

    Raises CommandFailed if the file cannot be read or has another format.
    """
    try:
        found = orjson.loads(file.read_bytes())
    except OSError as error:
        raise CommandFailed(f"{file}: cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise CommandFailed(f"{file}: found no JSON: {error}; expected {FORM}") from error
    if not isinstance(found, list):
        raise CommandFailed(f"{file}: found {type(found).__name__}; expected {FORM}")
    return [_read_answer(item, f"{file}: answer {n}") for n, item in enumerate(found, 1)]


def _read_answer(item: Any, where: str) -> GivenAnswer:
    if not isinstance(item, dict) or not isinstance(item.get("url"), str):
        raise CommandFailed(f"{where}: found no url; expected {FORM}")
    if unknown := item.keys() - FIELDS:
        raise CommandFailed(f"{where}: found {', '.join(sorted(unknown))}; expected {FORM}")
    method, status = item.get("method", "*"), item.get("status", 200)
    if not isinstance(method, str) or type(status) is not int or not 200 <= status <= 599:
        raise CommandFailed(f"{where}: found method {method!r} and status {status!r}; {RANGES}")
    return GivenAnswer(url=item["url"], method=method, status=status, json=item.get("json", {}))


class Answers:
    """Responses to requests. The same request gets the same response in every run."""

    def __init__(self, now: datetime, given: Sequence[GivenAnswer] = ()) -> None:
        self._given = given
        self._stripe = StripeObjects(now)

    def given(self, request: httpx.Request) -> GivenAnswer | None:
        """Return the user's response to the request, or None.

        If several match, the last one wins.
        """
        return next((answer for answer in reversed(self._given) if answer.fits(request)), None)

    def answer(self, request: httpx.Request, payload: Any) -> Any:
        """Return the body of a response.

        `payload` is that of the event, or a list of several, the newest first.
        """
        found = find_object(request, payload)
        if found is not None:
            return found
        if request.url.host == STRIPE:
            return self._stripe.answer(request)
        return {} if request.method in READS else {"id": "rehearsal"}


REPEATABLE: Final = frozenset({"PUT", "DELETE"})
"""Methods that are idempotent: https://www.rfc-editor.org/rfc/rfc9110#section-9.2.2"""


class RecordingTransport(httpx.AsyncBaseTransport):
    """HTTP transport of rehearsed runs."""

    def __init__(self, answers: Answers, reads: Sequence[str] = ()) -> None:
        self._answers = answers
        self._reads = reads

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        text = f"{request.method} {_shown_url(request.url)}"
        run = current_run()
        if run is None:
            raise httpx.ConnectError(f"{text}: no run of a handler is under way")
        outage = run.call(
            text,
            body.decode("utf-8", "replace"),
            is_write=not self._only_reads(request),
            is_repeatable=request.method in REPEATABLE,
            key=request.headers.get("idempotency-key"),
            outages=HTTP,
        )
        if outage is not None and outage.error is not None:
            raise outage.error()
        if outage is not None and outage.status is not None:
            return FailedResponse(outage.status, run)
        given = self._answers.given(request)
        if given is not None:
            return httpx.Response(given.status, json=given.json)
        run.invented.append(text)
        return httpx.Response(200, json=self._answers.answer(request, run.known))

    def _only_reads(self, request: httpx.Request) -> bool:
        return request.method in READS or any(fits(request.url, glob) for glob in self._reads)


def _shown_url(url: httpx.URL) -> str:
    """Return the URL without the parts that may be a credential."""
    return str(url.copy_with(userinfo=b"", query=None)) + ("?..." if url.query else "")


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


class _Enterable:
    """Can be entered by `with` and `async with`."""

    __slots__ = ()

    def _entered(self) -> Any:
        return self

    def __enter__(self) -> Any:
        return self._entered()

    def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> Any:
        return self._entered()

    async def __aexit__(self, *_: object) -> None: ...


class StandIn(_Enterable):
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


class StandInAnswer(_Enterable, str):
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

    def _entered(self) -> Any:
        return StandIn(str(self))


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
    said = [*map(_repr, args), *(f"{name}={_repr(value)}" for name, value in kwargs.items())]
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


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # the user's own class may raise any exception
        return type(value).__name__
