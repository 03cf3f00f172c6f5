"""The state of a job of a queue."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal

import asyncpg
from typing_extensions import TypedDict

from gateway.ledger.connection import QUERIES, Executor

JobStatus = Literal["pending", "running", "done", "dead", "discarded"]

ORDER: Final[tuple[JobStatus, ...]] = ("running", "pending", "dead", "done", "discarded")
"""The state of a job is the first of these that one of its deliveries has: it is not over before
all of them are."""


class JobDelivery(TypedDict):
    """The delivery of a job to one handler."""

    handler: str
    status: JobStatus
    attempts: int
    due_at: datetime | None
    finished_at: datetime | None
    error: str | None


class JobRow(TypedDict):
    """A job, with the combined state of its deliveries."""

    id: str
    queue: str
    type: str
    status: JobStatus
    received_at: datetime
    due_at: datetime | None
    attempts: int
    error: str | None
    deliveries: list[JobDelivery]


async def find_job(ledger: Executor, queue: str, id: str) -> JobRow | None:
    """Return the job with this id, or None if there is none, or if it was deleted."""
    rows = await ledger.fetch(QUERIES["find_job"], queue, id)
    if not rows:
        return None
    deliveries = [_delivery(row) for row in rows if row["handler"] is not None]
    status = overall([delivery["status"] for delivery in deliveries])
    due = [delivery["due_at"] for delivery in deliveries if delivery["due_at"] is not None]
    errors = [d["error"] for d in deliveries if d["status"] == status and d["error"] is not None]
    return {
        "id": id,
        "queue": queue,
        "type": rows[0]["type"],
        "status": status,
        "received_at": rows[0]["received_at"],
        "due_at": min(due, default=None),
        "attempts": max((delivery["attempts"] for delivery in deliveries), default=0),
        "error": next(iter(errors), None),
        "deliveries": deliveries,
    }


def overall(statuses: Sequence[JobStatus]) -> JobStatus:
    """Return the combined state of all deliveries.

    A job without a handler is pending until one is added.
    """
    return next((status for status in ORDER if status in statuses), "pending")


def _delivery(row: asyncpg.Record) -> JobDelivery:
    return {
        "handler": row["handler"],
        "status": row["status"],
        "attempts": row["attempts"],
        "due_at": row["due_at"] if row["status"] == "pending" else None,
        "finished_at": row["finished_at"],
        "error": row["error"],
    }
