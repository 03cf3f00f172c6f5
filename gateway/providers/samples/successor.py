"""A later event of the same object, to test that handlers end in the same state in either order."""

import uuid
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeGuard

import orjson

from gateway.providers.samples.changes import (
    change_github,
    change_stripe,
    newest_time,
    read_time,
    revise,
    touch,
    write_time,
)
from gateway.providers.samples.sample import (
    THIN,
    Sample,
    check_type,
    find_template,
    lay_out,
    sample_types,
    stripe_words,
)
from gateway.providers.samples.template import Blanks, bind, load_template

Document = dict[str, Any]

# Longer than the precision of any timestamp (a second, or a few), so the two times differ.
_GAP: Final = timedelta(minutes=1)
# The creation time of an object never changes. Repository, organization and sender are kept too.
_KEPT: Final = frozenset(
    {"created", "created_at", "start_date", "repository", "organization", "sender"}
)
_ABSENT: Final = object()


def make_successor(
    provider: str, sample: Sample, *, now: datetime, type: str | None = None
) -> Sample:
    """Make a new event of the same object, later and with another state.

    Without a `type`, the event has the same type and the object has changed: other amounts, texts,
    commits, and the next status if the type leaves it open (`*.updated`). With another type of the
    same kind of object, the object has the state of that type's sample. Raises ValueError for a
    type of another kind, and for a body that is not an event of the provider.
    """
    maker = _MAKERS.get(provider)
    if maker is None:
        raise ValueError(f"provider: found {provider!r}; expected one of {', '.join(_MAKERS)}")
    check_type(provider, type or sample.type)
    first = orjson.loads(sample.body)
    if not isinstance(first, dict):
        raise ValueError(f"the body is not an event of {provider}: expected a JSON object")
    return maker(sample, first, now.astimezone(UTC), type or sample.type)


def _next_stripe(sample: Sample, first: Document, now: datetime, type: str) -> Sample:
    created = first.get("created")
    moment = max(now, (read_time(created) or now) + _GAP)
    words = stripe_words(type, livemode=first.get("livemode") is True)
    event = first | {
        "id": words["event_id"],
        "type": type,
        "created": write_time(created, moment),
    }
    request = first.get("request")
    if isinstance(request, dict) and request.get("id"):
        event["request"] = Blanks({}, now=moment).fill(
            load_template("stripe/parts/event")["request"]
        )
    is_thin = first.get("object") == "v2.core.event"
    if is_thin != type.startswith(THIN):
        raise ValueError(f"type: found {type}; expected one of the same kind as {sample.type}")
    if not is_thin:
        event["data"] = _next_data(sample, first, type, words, moment)
    return Sample(id=str(event["id"]), type=type, body=lay_out("stripe", event))


def _next_data(
    sample: Sample, first: Document, type: str, words: Mapping[str, object], moment: datetime
) -> Document:
    data = first.get("data")
    before = data.get("object") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(before, dict):
        raise ValueError("the body is not an event of stripe: it has no data.object")
    _check_kind(type, _stripe_kind(type), str(before.get("object")))
    others = _others("stripe", sample.type, type, _stripe_kind)
    if others:
        old = [find_template("stripe", other)["data"]["object"] for other in others]
        new = find_template("stripe", type)["data"]["object"]
        after = revise(_move(before, old, new, words, moment))
        after["id"] = before.get("id")  # the template of invoice.upcoming has its own id
    else:
        after = change_stripe(before, status_is_open=type.endswith(".updated"))
    if isinstance(after.get("updated"), int):
        after["updated"] = int(moment.timestamp())
    later: Document = {"object": after}
    if type.endswith(".updated") or (type == sample.type and "previous_attributes" in data):
        later["previous_attributes"] = {
            key: value for key, value in before.items() if after.get(key, _ABSENT) != value
        }
    return later


def _next_github(sample: Sample, first: Document, now: datetime, type: str) -> Sample:
    event = _github_kind(type)
    _check_kind(type, event, _github_kind(sample.type))
    moment = max(now, (newest_time(first) or now) + _GAP)
    others = _others("github", sample.type, type, _github_kind)
    if others:
        old = [find_template("github", other) for other in others]
        after = _move(first, old, find_template("github", type), {}, moment)
    else:
        after = change_github(first, event)
    if "action" in first:
        after["action"] = type.partition(".")[2]
    body = lay_out("github", touch(after, moment))
    return Sample(id=str(uuid.uuid4()), type=type, body=body)


def _stripe_kind(type: str) -> str:
    kind = find_template("stripe", type).get("data", {}).get("object", {}).get("object")
    return str(stripe_words(type, livemode=False)["kind"] if kind == "{{kind}}" else kind)


def _others(provider: str, first_type: str, type: str, kind: Callable[[str], str]) -> list[str]:
    """Return the types whose templates are compared with that of the new type to find the change.

    The list is empty if the templates show no change. If the first type has no template, all
    other types of the same kind are used: values that differ from any of them are the new
    state, and the rest is kept.
    """
    types = sample_types(provider)
    if type == first_type or type not in types:
        return []
    if first_type in types:
        return [first_type]
    return [other for other in types if other != type and kind(other) == kind(type)]


def _github_kind(type: str) -> str:
    return type.partition(".")[0]


def _check_kind(type: str, found: str, expected: str) -> None:
    if found != expected:
        raise ValueError(f"type: found {type}, of the kind {found}; expected one of {expected}")


def _move(
    document: Document,
    old: Sequence[Document],
    new: Document,
    words: Mapping[str, object],
    moment: datetime,
) -> Document:
    """Return the document with the values that differ between the old templates and the new one.

    Ids, amounts and all values that are not in the templates are kept.
    """
    bound = ChainMap(dict(words), *(bind(template, document) for template in old))
    return _overlay(document, old, new, Blanks(bound, now=moment))


def _overlay(
    document: Document, old: Sequence[Document], new: Document, blanks: Blanks
) -> Document:
    gone = {key for template in old for key in template} - new.keys()
    moved = {key: value for key, value in document.items() if key not in gone}
    for key, part in new.items():
        is_same = all(part == template.get(key, _ABSENT) for template in old)
        if is_same or (key in _KEPT and key in document):
            continue
        here, before = document.get(key), [template.get(key) for template in old]
        if isinstance(here, dict) and isinstance(part, dict) and _are_documents(before):
            moved[key] = _overlay(here, before, part, blanks)
        else:
            moved[key] = blanks.fill(part)
    return moved


def _are_documents(values: Sequence[Any]) -> TypeGuard[Sequence[Document]]:
    return all(isinstance(value, dict) for value in values)


_Maker = Callable[[Sample, Document, datetime, str], Sample]
_MAKERS: Final[Mapping[str, _Maker]] = {"stripe": _next_stripe, "github": _next_github}
