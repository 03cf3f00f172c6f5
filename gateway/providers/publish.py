"""A queue: its jobs are published by handlers (`ctx.publish`), and nothing comes in over HTTP."""

from datetime import timedelta
from typing import Final, NoReturn

from gateway.errors import BadSignature
from gateway.providers.provider import Provider


def _refuse(*_: object, **__: object) -> NoReturn:
    raise BadSignature("a queue takes no requests")


PUBLISH: Final = Provider(
    name="publish",
    verify=_refuse,
    read=_refuse,
    sign=_refuse,
    redelivery=timedelta(0),
    retries=True,
    max_body=1024 * 1024,
    tolerance=None,
    is_queue=True,
)
