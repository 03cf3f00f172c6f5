"""Save a real event to a file, for rehearsals, new handlers and tests."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import Any, Final

import orjson

from gateway.base.errors import CommandFailed
from gateway.base.model import FORM, payload_bytes
from gateway.operations.redaction import redact
from gateway.providers.publish import DEEPEST
from gateway.providers.samples import Recorded, check_recorded, dump_recorded

_ALWAYS_KEPT: Final = frozenset({"content-type", "user-agent"})
# Headers with the provider's prefix can be credentials too: x-hub-signature-256, x-gitlab-token.
_PROOFS: Final = ("auth", "hmac", "key", "secret", "signature", "token")


def record(event: Mapping[str, Any], *, redacting: Sequence[str] = ()) -> tuple[Recorded, int]:
    """Return an event of the ledger without credentials, and the number of redacted values."""
    document = _document(event)
    redacted, count = redact(document, redacting) if redacting else (document, 0)
    recorded = Recorded(
        provider=event["provider"],
        type=event["type"],
        id=event["event_id"],
        headers=_headers(event["provider"], event["headers"] or {}),
        body=orjson.dumps(redacted),
    )
    try:
        check_recorded(recorded)
    except ValueError as error:  # the event's own id or type was redacted
        raise CommandFailed(f"nothing was saved: {error}") from error
    return recorded, count


def save(recorded: Recorded, file: Path, *, force: bool) -> None:
    """Write the file atomically, readable by its owner only. Creates its directory."""
    if file.exists() and not force:
        raise CommandFailed(f"{file} exists already: overwrite it with --force")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(dump_recorded(recorded))
            Path(temporary).replace(file)
        except BaseException:
            with suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise CommandFailed(f"{file}: cannot be written: {error.strerror}") from error


def _document(event: Mapping[str, Any]) -> Any:
    if event["body"] is None:
        raise CommandFailed("the payload was pruned or erased")
    try:
        document = orjson.loads(payload_bytes(event["headers"] or {}, event["body"]))
        orjson.dumps(document)
    except ValueError:
        raise CommandFailed("the payload is not JSON: save its bytes with --body") from None
    except TypeError:  # orjson reads more levels of nesting than it writes
        raise CommandFailed(
            f"the payload has more than {DEEPEST} levels: save its bytes with --body"
        ) from None
    return document


def _headers(provider: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Keep the headers that describe the event, but not those about sender, proxies or keys."""
    own = (f"x-{provider}-", f"{provider}-")
    kept = {
        name: value
        for name, value in headers.items()
        if name in _ALWAYS_KEPT
        or (name.startswith(own) and not any(word in name for word in _PROOFS))
    }
    if kept.get("content-type", "").startswith(FORM):
        kept["content-type"] = "application/json"
    return kept
