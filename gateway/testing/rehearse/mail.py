"""E-mail through the standard library: recorded, and never sent."""

import smtplib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from gateway.testing.guard import current_guard
from gateway.testing.rehearse.outages import MAIL
from gateway.testing.rehearse.trace import current_run

SAID: Final = b"recorded by a rehearsal"
SILENCED: Final = ("ehlo", "helo", "starttls", "login", "rset", "noop", "verify")
CODES: Final = {"QUIT": 221, "DATA": 354, "STARTTLS": 220, "AUTH": 235}
"""Reply codes of a successful command, if not 250 (https://www.rfc-editor.org/rfc/rfc5321)."""


@contextmanager
def recorded_mail() -> Iterator[None]:
    """Keep `smtplib` from connecting to any server while the block runs.

    The methods are replaced, not the classes, because a module may have imported `SMTP` under a
    name of its own.
    """
    replaced = {**dict.fromkeys(SILENCED, _fine), **REPLACED}
    kept = {name: getattr(smtplib.SMTP, name) for name in replaced}
    _replace(replaced)
    try:
        yield
    finally:
        _replace(kept)


def _replace(methods: Mapping[str, Callable[..., object]]) -> None:
    for name, method in methods.items():
        setattr(smtplib.SMTP, name, method)


def _fine(*_: object, **__: object) -> tuple[int, bytes]:
    return 250, SAID


def _greet(*_: object, **__: object) -> tuple[int, bytes]:
    guard = current_guard()
    if guard is not None:
        guard.note_blocking("smtplib.SMTP.connect")
    return 220, SAID


def _answer(_: smtplib.SMTP, command: str, *__: object) -> tuple[int, bytes]:
    return CODES.get(command.upper(), 250), SAID


def _nothing(*_: object, **__: object) -> None: ...


def _sendmail(
    _: smtplib.SMTP,
    from_addr: str,
    to_addrs: str | Sequence[str],
    msg: bytes | str,
    *__: object,
    **___: object,
) -> dict[str, tuple[int, bytes]]:
    receivers = to_addrs if isinstance(to_addrs, str) else ", ".join(to_addrs)
    content = msg if isinstance(msg, str) else msg.decode("utf-8", "replace")
    run = current_run()
    if run is not None:
        outage = run.call(f"e-mail to {receivers}", content, is_write=True, outages=MAIL)
        if outage is not None and outage.error is not None:
            raise outage.error()
    return {}


REPLACED: Final[Mapping[str, Callable[..., object]]] = {
    "connect": _greet,
    "docmd": _answer,
    "close": _nothing,
    "ehlo_or_helo_if_needed": _nothing,
    "sendmail": _sendmail,
}
