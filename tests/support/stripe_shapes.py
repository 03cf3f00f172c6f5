"""Compares an object with the class that the stripe library declares for it."""

import types
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final, ForwardRef, Literal, Union, get_args, get_origin

import stripe

Problems = Iterator[str]
SCALARS: Final = frozenset({bool, int, float, str, Decimal, type(None)})


def shape_problems(value: Any, declared: Any, path: str) -> Problems:
    """Fields that are missing, that do not exist, and values outside an enumeration."""
    options = _options(declared)
    enumeration = [word for option in options for word in _words(option)]
    if enumeration and isinstance(value, str) and value not in enumeration:
        yield f"{path}: found {value!r}; expected one of {', '.join(enumeration)}"
    if not _is_allowed(value, options):
        yield f"{path}: found {value!r}; expected {options}"
    if isinstance(value, dict):
        yield from _object_problems(value, _class(options, value), path)
    elif isinstance(value, list):
        items = next((get_args(option)[0] for option in options if get_args(option)), Any)
        for index, item in enumerate(value):
            yield from shape_problems(item, items, f"{path}.{index}")


def _is_allowed(value: Any, options: list[Any]) -> bool:
    """Whether a scalar has a declared type; money in decimals is text in JSON."""
    if isinstance(value, dict | list) or not SCALARS.issuperset(options):
        return True
    return type(value) in options or (isinstance(value, str) and Decimal in options)


def _object_problems(value: dict[str, Any], cls: Any, path: str) -> Problems:
    if cls is None:
        return
    if get_origin(cls) is stripe.ListObject:
        for index, item in enumerate(value["data"]):
            yield from shape_problems(item, get_args(cls)[0], f"{path}.data.{index}")
        return
    fields = {
        name: declared
        for name, declared in cls.__annotations__.items()
        if not name.startswith("_") and not str(declared).startswith("typing.ClassVar")
    }
    for name, declared in fields.items():
        if name in value:
            yield from shape_problems(value[name], declared, f"{path}.{name}")
        elif type(None) not in _options(declared):
            yield f"{path}.{name}: missing"
    for name in value.keys() - fields.keys():
        yield f"{path}.{name}: the library knows no such field"


def _options(declared: Any) -> list[Any]:
    """The members of a union, nested ones too, with names of classes resolved."""
    if isinstance(declared, ForwardRef):
        declared = declared.__forward_arg__
    if isinstance(declared, str):
        declared = _resolve(declared)
    if get_origin(declared) in (Union, types.UnionType):
        return [option for member in get_args(declared) for option in _options(member)]
    return [declared]


def _resolve(name: str) -> Any:
    """A class by its name; None stands for one that is only declared for type checkers."""
    found: Any = stripe
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if found is not None else object


def _words(option: Any) -> list[str]:
    if get_origin(option) is not Literal:
        return []
    return [word for word in get_args(option) if isinstance(word, str)]


def _class(options: list[Any], value: dict[str, Any]) -> Any:
    """The class among the options that this object is one of, if any is declared field by field."""
    listed = [option for option in options if get_origin(option) is stripe.ListObject]
    if listed and value.get("object") == "list":
        return listed[0]
    classes = [option for option in options if _has_fields(option)]
    named = [cls for cls in classes if getattr(cls, "OBJECT_NAME", None) == value.get("object")]
    return next(iter(named or classes), None)


def _has_fields(option: Any) -> bool:
    is_object = isinstance(option, type) and issubclass(option, stripe.StripeObject)
    return is_object and option is not stripe.StripeObject and bool(option.__annotations__)
