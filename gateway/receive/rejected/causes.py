"""Find out why a request was rejected, from its stored data, outside the request path."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

import orjson

from gateway.base.errors import BadPayload, Overloaded, RequestRejected
from gateway.base.secrets import Secret
from gateway.base.units import format_duration, format_roughly
from gateway.config.routes import Route
from gateway.ledger.rejected import BAD_ITEM, NOWHERE, Clocks
from gateway.providers import Incoming
from gateway.providers.signature import NO_MATCH, OTHERS_BEARER
from gateway.receive.keyring import EXPIRED
from gateway.receive.rejected.requests import UnexaminedRequest
from gateway.receive.rejected.tries import (
    ANY_TIME,
    HashBudget,
    TriedRoute,
    all_marks,
    body_forms,
    make_known,
    matches,
    read_keys,
    secret_forms,
)

AGREES_S: Final = 60.0
"""If our clock differs by less than this, it is not the reason for stale requests."""

MOST_KEYS: Final = 64
"""Maximum number of keys of other routes to try."""

LONGEST_DETAIL: Final = 500
MOST_NAMED: Final = 3


class RejectionCause(NamedTuple):
    """The cause of a rejection: a code for grouping, and a sentence."""

    kind: str
    words: str


def describe_item(reason: str) -> str:
    """Describe the error in an item of a batch that was accepted without it."""
    return f"an item of a batch whose other items were accepted: {reason}"


class CauseFinder:
    """Find the cause of rejected requests, with knowledge of all routes and secrets."""

    def __init__(
        self, routes: Iterable[Route], secrets: Mapping[str, Sequence[Secret]], public_url: str
    ) -> None:
        self._known = {
            route.name: make_known(route, [s.reveal() for s in secrets.get(route.name, ())])
            for route in routes
        }
        self._public_url = public_url
        self._paths = {known.route.path: name for name, known in self._known.items()}

    @property
    def token_headers(self) -> frozenset[str]:
        """The headers that carry the plain secret of some route."""
        known = self._known.values()
        return frozenset().union(*(k.marks.tokens | k.route.provider.credentials for k in known))

    def explain(
        self, request: UnexaminedRequest, clocks: Clocks | None, budget: HashBudget
    ) -> RejectionCause:
        """Return the most likely cause.

        If none is found, keep the reason given by the rejection.
        """
        if request.route == NOWHERE:
            cause = self._explain_path(request, budget)
        elif request.code == "BAD_SIGNATURE":
            cause = self._explain_signature(request, budget)
        elif request.code == "STALE_TIMESTAMP":
            cause = self._explain_time(request, clocks)
        elif request.code == Overloaded.code:
            cause = RejectionCause(
                "overload",
                f"shed (503): {request.reason}; the sender does not retry: have it redelivered",
            )
        elif request.code == BadPayload.code and request.verified_by is not None:
            cause = RejectionCause(BAD_ITEM, describe_item(request.reason))
        else:
            cause = RejectionCause(request.code.lower(), request.reason)
        return RejectionCause(cause.kind, cause.words[:LONGEST_DETAIL])

    def _explain_path(self, request: UnexaminedRequest, budget: HashBudget) -> RejectionCause:
        path = request.path.partition("?")[0]
        found = self._recognised(self._incoming(request), request.at, budget, but=None)
        if found is not None:
            return RejectionCause(
                "wrong_url",
                f"no route has this path, and it is signed for route {found}: correct the URL at"
                f" the sender ({self._known[found].route.path}), then release it with"
                f" --to-route {found}",
            )
        near = get_close_matches(path, self._paths, n=1)
        hint = f"; route {self._paths[near[0]]} has {near[0]}" if near else ""
        return RejectionCause("unknown_path", f"no route has this path{hint}")

    def _explain_signature(self, request: UnexaminedRequest, budget: HashBudget) -> RejectionCause:
        known, incoming = self._known[request.route], self._incoming(request)
        signatures = known.marks.signatures
        is_compared = request.reason == NO_MATCH
        if signatures and not is_compared and signatures.isdisjoint(request.headers):
            return self._explain_no_signature(known, request, incoming, budget)
        if request.body == b"":
            return RejectionCause(
                "empty_body",
                "the body is empty: a redirect on the way (http to https, a slash at the end) drops"
                " it; give the sender the URL to which it leads",
            )
        if request.body is None:
            return RejectionCause(
                "not_examined", f"{request.reason}; its body was not kept to look closer"
            )
        if budget.is_spent:
            return RejectionCause(
                "not_examined", f"{request.reason}; too many came at once to look closer"
            )
        tries = (self._try_secret, self._try_routes, self._try_url, self._try_body)
        for attempt in tries:
            if (cause := attempt(known, incoming, request.at, budget)) is not None:
                return cause
        if request.reason.endswith(OTHERS_BEARER):
            return RejectionCause("unknown_secret", f"{request.reason}, nor of any other")
        if request.reason not in (NO_MATCH, EXPIRED):
            return RejectionCause("malformed", request.reason)
        return self._explain_unknown_secret(known.route, incoming)

    def _explain_no_signature(
        self, known: TriedRoute, request: UnexaminedRequest, incoming: Incoming, budget: HashBudget
    ) -> RejectionCause:
        expected = " or ".join(sorted(known.marks.signatures))
        found = self._recognised(incoming, request.at, budget, but=known.route.name)
        if found is not None:
            return self._wrong_url(found, known.route.label)
        if others := self._signers(request.headers):
            names, headers = others
            return RejectionCause(
                "other_provider",
                f"it has the signature header of {names} ({headers}), and this is a"
                f" {known.route.provider.name} route: is the URL in the dashboard there the right"
                " one?",
            )
        empty = ", and the body is empty" if request.body == b"" else ""
        return RejectionCause(
            "no_signature",
            f"the signature header {expected} is missing{empty}: a sender without the secret set,"
            " a proxy that drops it, or a stranger",
        )

    def _signers(self, headers: Mapping[str, str]) -> tuple[str, str] | None:
        """Return the providers to which these signature headers belong, with the headers."""
        found: dict[frozenset[str], list[str]] = {}
        for name, marks in all_marks().items():
            if marks.signatures and marks.signatures <= headers.keys():
                found.setdefault(marks.signatures, []).append(name)
        if not found:
            return None
        signatures, names = max(found.items(), key=lambda item: len(item[0]))
        return " or ".join(names[:MOST_NAMED]), " and ".join(sorted(signatures))

    def _wrong_url(self, found: str, route: str) -> RejectionCause:
        known = self._known[found].route
        return RejectionCause(
            "wrong_url",
            f"it is signed for route {known.label}, and came to {route}: correct the URL at the"
            f" sender ({known.path}), then release it with --to-route {known.label}",
        )

    def _try_secret(
        self, known: TriedRoute, incoming: Incoming, at: datetime, budget: HashBudget
    ) -> RejectionCause | None:
        """Try the route's own secret: whether it has expired, or is in another form."""
        for ref, secret in zip(known.route.secrets, known.secrets, strict=False):
            keys = read_keys(known.route.provider, [secret])
            if ref.has_expired(at) and matches(known.route.provider, incoming, keys, at, budget):
                return RejectionCause(
                    "expired_secret", f"signed with the secret in {ref}, which has expired"
                )
            for form in secret_forms(secret):
                keys = read_keys(known.route.provider, [form.secret])
                if matches(known.route.provider, incoming, keys, at, budget):
                    return RejectionCause("secret_form", f"the secret in {ref} {form.words}")
        return None

    def _try_routes(
        self, known: TriedRoute, incoming: Incoming, at: datetime, budget: HashBudget
    ) -> RejectionCause | None:
        """Try the secrets of the other routes, with this provider's scheme and with their own."""
        for _, other in self._others(known.route.name):
            keys = read_keys(known.route.provider, other.secrets)
            if matches(known.route.provider, incoming, keys, at, budget):
                return RejectionCause(
                    "another_route",
                    "signed with another secret: it matches the secret of route"
                    f" {other.route.label}.{_mode(known.route, other.route)} Give each its own, or"
                    " correct the URL",
                )
        found = self._recognised(incoming, at, budget, but=known.route.name)
        return None if found is None else self._wrong_url(found, known.route.label)

    def _try_url(
        self, known: TriedRoute, incoming: Incoming, at: datetime, budget: HashBudget
    ) -> RejectionCause | None:
        """Try other forms of the URL, for providers that sign it."""
        if not known.route.provider.uses_url:
            return None
        rest = incoming.url.removeprefix(self._public_url)
        host = incoming.headers.get("host", "")
        bases = [f"{scheme}://{host}" for scheme in ("https", "http")]
        bases += [self._public_url.replace("https://", "http://", 1)]
        for base in bases:
            for url in (base + rest, (base + rest).rstrip("/"), base + rest + "/"):
                if matches(
                    known.route.provider, incoming._replace(url=url), known.keys, at, budget
                ):
                    return RejectionCause(
                        "other_url",
                        f"it was signed for {url.partition('?')[0][:200]}, and GATEWAY_PUBLIC_URL"
                        f" says {self._public_url}",
                    )
        return None

    def _try_body(
        self, known: TriedRoute, incoming: Incoming, at: datetime, budget: HashBudget
    ) -> RejectionCause | None:
        """Try the body as it may have been before something on the way changed it."""
        for form in body_forms(incoming.body, budget):
            touched = incoming._replace(body=form.body)
            if matches(known.route.provider, touched, known.keys, at, budget):
                return RejectionCause(
                    "reserialised",
                    f"the body was changed on its way: the signature matches it {form.words}. A"
                    " proxy, a WAF, an API gateway with a body mapping or a framework that parses"
                    " and writes JSON stands before the gateway: let it pass the bytes as they are",
                )
        return None

    def _explain_unknown_secret(self, route: Route, incoming: Incoming) -> RejectionCause:
        livemode = _livemode(incoming.body)
        if livemode is not None and route.livemode not in (None, livemode):
            mode, other = ("live", "test") if route.livemode else ("test", "live")
            said = str(livemode).lower()
            return RejectionCause(
                "other_mode",
                f"signed with a secret that no route has, and it says livemode {said}"
                f" where the route takes {mode} events: most likely the {other} endpoint of the"
                " sender has this URL",
            )
        return RejectionCause(
            "unknown_secret",
            "signed with a secret that no route has: one that was rotated at the sender only, or"
            " a forger",
        )

    def _explain_time(self, request: UnexaminedRequest, clocks: Clocks | None) -> RejectionCause:
        known = self._known[request.route]
        signed_at_s = _signed_at(known, self._incoming(request), request.at)
        if signed_at_s is None:
            return RejectionCause("clock", request.reason)
        age_s = request.at.timestamp() - signed_at_s
        apart = timedelta(seconds=abs(int(age_s)))
        side = "ago" if age_s > 0 else "ahead of us"
        return RejectionCause(
            "clock",
            f"clock {format_roughly(apart)} apart: signed {format_duration(apart)} {side}."
            f" {_side(age_s, clocks)}",
        )

    def _recognised(
        self, incoming: Incoming, at: datetime, budget: HashBudget, *, but: str | None
    ) -> str | None:
        """Return the route for which a request is signed, or None."""
        if not incoming.body:
            return None
        for name, other in self._others(but):
            has_marks = not other.marks.signatures.isdisjoint(incoming.headers)
            if has_marks and matches(other.route.provider, incoming, other.keys, at, budget):
                return name
        return None

    def _others(self, but: str | None) -> Iterator[tuple[str, TriedRoute]]:
        left = MOST_KEYS
        for name, known in self._known.items():
            if name != but and known.keys and left > 0:
                left -= len(known.keys)
                yield name, known

    def _incoming(self, request: UnexaminedRequest) -> Incoming:
        return Incoming(
            request.headers, request.body or b"", request.method, self._public_url + request.path
        )


def _signed_at(known: TriedRoute, incoming: Incoming, at: datetime) -> float | None:
    """Return the signed timestamp, or None if no signature matches or it contains no timestamp."""
    try:
        verified = known.route.provider.verify(
            incoming, keys=known.keys, now=at, tolerance=ANY_TIME
        )
    except RequestRejected:
        return None
    return verified.signed_at_s


def _side(age_s: float, clocks: Clocks | None) -> str:
    """Say whose clock is wrong, judging by the timestamps of other senders."""
    if clocks is None or clocks.apart_s is None:
        return (
            "No signed time was accepted in the last hour, so it may be our clock: `gateway doctor`"
            " compares it"
        )
    if abs(clocks.apart_s) >= AGREES_S:
        apart = format_roughly(timedelta(seconds=abs(clocks.apart_s)))
        return f"Other senders are {apart} apart from us, too: look at our clock"
    told = "The last senders agree with our clock, so it is the sender's"
    if age_s > 0:
        return f"{told}; or it waited so long on its way, or is an old request sent again"
    return told


def _mode(route: Route, other: Route) -> str:
    if None in (route.livemode, other.livemode) or route.livemode == other.livemode:
        return ""
    return f" That one takes {'live' if other.livemode else 'test'} events: the modes are mixed up."


def _livemode(body: bytes) -> bool | None:
    try:
        document: Any = orjson.loads(body)
    except ValueError:
        return None
    livemode = document.get("livemode") if isinstance(document, dict) else None
    return livemode if isinstance(livemode, bool) else None
