"""Advice for a handler that fails in a single run. The cause is not always an unsuitable event."""

import os
import re
import traceback
from typing import Final

import asyncpg

from gateway.base.errors import causes
from gateway.testing.rehearse.stage import EndedRun

EVENT_ADVICE: Final = (
    "record an event on which it works with `gateway show ID --save FILE` and pass --event FILE"
)
ANSWERS_ADVICE: Final = (
    "{request} has got an answer that is made up here: say what it is answered with by --answers "
    "FILE; where it is the event that is wanting, {event}"
)
TYPES_ADVICE: Final = (
    "pass a value of the type that the column has: a datetime for timestamptz (event.occurred_at), "
    "an int for bigint, a str for text"
)
TRANSACTION_ADVICE: Final = (
    "an earlier statement failed and was caught, which ends the transaction: put it into "
    "`async with ctx.db.transaction():`, so that only it is undone"
)
ROW_ADVICE: Final = "give it the row that it refers to with --seed FILE, SQL that inserts it"
TABLE_ADVICE: Final = "create it in one of the files that `schema:` in routes.yaml names"

_COLUMN: Final = re.compile(r'column "(\w+)" of relation "(\w+)" does not exist')
_NEEDS_INDEX: Final = re.compile(r"ctx\.upsert\('([\w.]+)'\) needs a unique index on \((.+?)\)")
_CONFLICT: Final = re.compile(
    r'\binto\s+([\w."]+).*?\bon\s+conflict\s*\(([^)]*)\)', re.IGNORECASE | re.DOTALL
)
_OF_ANSWERS: Final = (LookupError, AttributeError, TypeError, ValueError)


def advise(performance: EndedRun) -> str:
    """Return the advice for a failed run."""
    error = performance.raised
    if error is None:
        return EVENT_ADVICE
    for cause in causes(error):
        if advice := _advise_on_database(cause, performance):
            return advice
    if variable := _missing_variable(error):
        return f"set the environment variable {variable}: any value will do"
    if isinstance(error, _OF_ANSWERS) and performance.run.invented:
        request = performance.run.invented[-1]
        return ANSWERS_ADVICE.format(request=request, event=EVENT_ADVICE)
    return EVENT_ADVICE


def _advise_on_database(error: BaseException, performance: EndedRun) -> str | None:
    match error:
        case asyncpg.UndefinedColumnError():
            return _column_advice(str(error))
        case asyncpg.UndefinedTableError():
            return TABLE_ADVICE
        case asyncpg.InvalidColumnReferenceError():
            return _index_advice(performance)
        case asyncpg.ForeignKeyViolationError():
            return ROW_ADVICE
        case asyncpg.InFailedSQLTransactionError():
            return TRANSACTION_ADVICE
        case asyncpg.DataError():
            return TYPES_ADVICE
    return None


def _column_advice(message: str) -> str:
    found = _COLUMN.search(message)
    if found is None:
        return "the schema has no such column: add it, or name the one that is there"
    column, table = found.groups()
    if column == "version":
        return (
            "ctx.upsert keeps version= in a column of that name: add it to your schema, for times "
            f"`alter table {table} add column version timestamptz`, for numbers as bigint"
        )
    return f"add it to your schema: `alter table {table} add column {column} ...`"


def _index_advice(performance: EndedRun) -> str:
    found = _NEEDS_INDEX.search(performance.error or "")
    for step in performance.run.steps:
        if found is None and step.error is not None:
            found = _CONFLICT.search(step.text)
    if found is None:
        return "`on conflict` needs a unique index on the columns that it names"
    return f"add it to your schema: `create unique index on {found[1]} ({found[2]})`"


def _missing_variable(error: BaseException) -> str | None:
    """Return the name of the missing variable if `os.environ` itself raised the error, or None."""
    if not isinstance(error, KeyError):
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_environ = bool(frames) and frames[-1].f_code is type(os.environ).__getitem__.__code__
    return str(error.args[0]) if is_environ and error.args else None
