"""What a handler may ask for beside its types: keys, order, pace and shared resources."""

import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import handler
from gateway.base.errors import ConfigInvalid
from gateway.base.model import OnDead, Rate
from gateway.base.units import format_rate, parse_rate
from gateway.config.registry import Registry, load_registry
from gateway.config.registry.decorator import spec_of
from gateway.config.registry.key_path import KeyPath, key_of
from gateway.config.routes import load_config

ROUTES = """
routes:
  stripe: {provider: stripe, secrets: [env:A], handlers: [one, two]}
  tasks: {provider: publish, handlers: [one]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "routes.yaml").write_text(ROUTES)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def load(folder: Path, one: str, two: str | None = None) -> Registry:
    plain = '@handler("*")\nasync def plain(event, ctx): ...\n'
    for name, source in (("one", one), ("two", two or plain)):
        head = "from gateway import handler, resource\n"
        (folder / f"{name}.py").write_text(head + textwrap.dedent(source))
    return load_registry(load_config(folder / "routes.yaml"))


def test_the_decorator_keeps_order_and_pace() -> None:
    @handler(
        "invoice.*",
        once_per="data.object.id",
        order_by="data.object.customer",
        on_dead="block",
        concurrency=5,
        rate="100/m",
    )
    async def paid(event: Any, ctx: Any) -> None: ...

    spec = spec_of(paid)
    assert spec is not None
    assert str(spec.once_per) == "data.object.id"
    assert str(spec.order_by) == "data.object.customer"
    assert spec.on_dead is OnDead.BLOCK
    assert spec.concurrency == 5
    assert spec.rate == Rate(count=100, period=timedelta(minutes=1))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"order_by": ""}, ValueError, "order_by: found ''; expected the path of a value"),
        ({"order_by": "a..b"}, ValueError, "order_by: found 'a..b'; expected the path"),
        ({"once_per": "a b"}, ValueError, "once_per: found 'a b'; expected the path"),
        ({"once_per": 5}, TypeError, "once_per: found 5; expected the path"),
        ({"once_per": ["a", 5]}, TypeError, "once_per: found 5; expected the path"),
        ({"order_by": ["a", "b c"]}, ValueError, "order_by: found 'b c'; expected the path"),
        ({"order_by": []}, ValueError, "order_by: found 0 paths; expected 1 to 8 of them"),
        ({"once_per": ["a"] * 9}, ValueError, "once_per: found 9 paths; expected 1 to 8 of them"),
        ({"on_dead": "block"}, ValueError, "on_dead: found 'block'; expected an order_by beside"),
        ({"order_by": "a", "on_dead": "wait"}, ValueError, "expected one of block, pass"),
        ({"concurrency": 0}, ValueError, "concurrency: found 0; expected a whole number from 1"),
        ({"concurrency": 1001}, ValueError, "concurrency: found 1001; expected a whole number"),
        ({"concurrency": 1.5}, TypeError, "concurrency: found 1.5; expected a whole number"),
        ({"rate": "100"}, ValueError, "rate: found '100'; expected a rate such as 5/s"),
        ({"rate": "0/s"}, ValueError, "rate: found '0/s'; expected a rate"),
        ({"rate": "10001/s"}, ValueError, "rate: found '10001/s'; expected a rate"),
        ({"rate": "5/0s"}, ValueError, "rate: found '5/0s'; expected a rate"),
        ({"rate": "5/fortnight"}, ValueError, "rate: found '5/fortnight'; expected a rate"),
        ({"rate": 5}, TypeError, "rate: found 5; expected a rate"),
    ],
)
def test_an_option_that_cannot_be_is_refused_when_the_module_is_imported(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as refused:
        handler("a", **options)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "count", "period"),
    [
        ("5/s", 5, timedelta(seconds=1)),
        ("100/m", 100, timedelta(minutes=1)),
        ("10000/d", 10_000, timedelta(days=1)),
        ("20/10s", 20, timedelta(seconds=10)),
        ("1/1h30m", 1, timedelta(minutes=90)),
    ],
)
def test_a_rate_is_a_count_and_a_period(text: str, count: int, period: timedelta) -> None:
    assert parse_rate(text) == (count, period)
    assert parse_rate(format_rate(count, period)) == (count, period)


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("data.object.id", "in_1"),
        ("data.lines.1.id", "il_2"),
        ("data.amount", "5"),
        ("data.live", "true"),
        ("data.none", None),
        ("data.nothing", None),
        ("data.object.id.more", None),
        ("data.lines.7.id", None),
        ("data.lines.x", None),
        ("data.object", '{"id":"in_1"}'),
    ],
)
def test_a_path_leads_to_a_key_or_to_none(path: str, key: str | None) -> None:
    payload = {
        "data": {
            "object": {"id": "in_1"},
            "lines": [{"id": "il_1"}, {"id": "il_2"}],
            "amount": 5,
            "live": True,
            "none": None,
        }
    }
    assert KeyPath.parse(path).key(payload) == key


@given(st.text(max_size=400))
def test_any_text_becomes_a_key_that_an_index_can_hold(text: str) -> None:
    key = KeyPath.parse("a").key({"a": text})
    assert key is not None
    assert 0 < len(key) <= 200
    assert "\0" not in key
    key.encode()


def test_two_long_keys_that_differ_stay_two() -> None:
    keys = {KeyPath.parse("a").key({"a": "x" * 500 + end}) for end in "abc"}
    assert len(keys) == 3


def test_several_values_are_one_key_that_no_other_values_make() -> None:
    path = KeyPath.parse("a", "b.c")
    assert str(path) == "a, b.c"
    keys = [
        path.key({"a": a, "b": {"c": c}})
        for a, c in [("a", "bc"), ("ab", "c"), ("abc", ""), ('a","b', "c"), ("a", 'b","c'), (1, 2)]
    ]
    assert keys[0] == '["a","bc"]'
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert path.key({"a": 1, "b": {"c": 2}}) == path.key({"a": "1", "b": {"c": "2"}})


@pytest.mark.parametrize("payload", [{"a": "x"}, {"b": "x"}, {"a": "x", "b": None}, [], None])
def test_a_key_of_several_values_needs_all_of_them(payload: object) -> None:
    assert KeyPath.parse("a", "b").key(payload) is None


def test_a_list_of_one_path_is_that_path() -> None:
    assert KeyPath.parse(*["a"]).key({"a": "x"}) == KeyPath.parse("a").key({"a": "x"}) == "x"


@given(st.lists(st.text(max_size=150), min_size=1, max_size=4))
def test_the_text_of_several_values_fits_into_an_index(values: list[str]) -> None:
    paths = KeyPath.parse(*(str(n) for n in range(len(values))))
    key = paths.key(values)
    assert key is not None
    assert 0 < len(key) <= 200
    key.encode()


@given(
    st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=3),
    st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=3),
)
def test_keys_that_handlers_give_are_the_same_only_if_their_values_are(
    values: list[str], others: list[str]
) -> None:
    assert (key_of(values) == key_of(others)) == (values == others)


def test_a_key_that_a_handler_gives_is_the_one_that_a_path_would_read() -> None:
    assert key_of("cs_1") == key_of(("cs_1",)) == KeyPath.parse("a").key({"a": "cs_1"}) == "cs_1"
    assert key_of(("m", 7)) == KeyPath.parse("a", "b").key({"a": "m", "b": 7}) == '["m","7"]'
    assert key_of('["m","7"]') != key_of(("m", "7")), "a text is no list, whatever is in it"


@pytest.mark.parametrize("values", [None, "", (), ("a", None), (None,), True, 1.5, {"a": 1}, [[]]])
def test_what_is_no_key_is_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        key_of(values)


def test_a_key_is_read_for_the_handlers_that_take_turns(folder: Path) -> None:
    registry = load(
        folder,
        """
        @handler("a", order_by="customer")
        async def ordered(event, ctx): ...
        @handler("a", once_per="id", name="each")
        async def each(event, ctx): ...
        @handler("a", order_by=["customer", "id"])
        async def twofold(event, ctx): ...
        @handler("a", once_per=("id", "absent"))
        async def unkeyed(event, ctx): ...
        """,
    )
    body = orjson.dumps({"id": "in_1", "customer": "cus_1"})
    handlers = registry.for_event("stripe", "a")
    assert registry.order_keys("stripe", handlers, {}, body) == {
        "one.ordered": "cus_1",
        "each": "in_1",
        "one.twofold": '["cus_1","in_1"]',
    }
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert registry.order_keys("tasks", ["each"], form, b"payload=%7B%22id%22%3A7%7D") == {
        "each": "7"
    }
    assert registry.order_keys("stripe", ["two.plain"], {}, b"not even JSON") == {}


RESOURCE = """
@resource
async def mailer():
    yield "a pool"
@handler("a")
async def first(event, ctx): ...
"""


def test_a_resource_that_two_modules_share_is_one(folder: Path) -> None:
    registry = load(
        folder,
        RESOURCE,
        """
        from one import mailer
        @handler("b")
        async def second(event, ctx): ...
        """,
    )
    assert [(r.name, r.place) for r in registry.resources] == [("mailer", "one.py:3")]


def test_two_resources_of_one_name_are_a_problem(folder: Path) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        load(folder, RESOURCE, RESOURCE)
    (problem,) = refused.value.problems
    assert problem.found == "two resources named mailer (one.py:3 and two.py:3)"
