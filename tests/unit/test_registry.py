"""Handlers: what the decorator takes, what a module may hold, and who gets which event."""

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.base.errors import ConfigInvalid, Problem
from gateway.base.model import Backoff, Event, RetryPolicy
from gateway.config.registry import Registry, Subscription, handler, load_registry
from gateway.config.registry import modules as handler_modules
from gateway.config.registry.decorator import spec_of
from gateway.config.registry.registry import REMEMBERED_TYPES
from gateway.config.routes import Config, load_config
from gateway.privacy.redaction import FieldPath, Redaction

DURATION = "a duration such as 250ms, 15s, 5m, 1h30m or 35d"
DEFAULTS = RetryPolicy(
    attempts=7, backoff=Backoff.FIXED, base=timedelta(seconds=2), cap=timedelta(minutes=2)
)


class Project:
    """A working directory with handler modules and a `routes.yaml`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module(self, name: str, source: str) -> None:
        file = self.folder.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("from gateway.config.registry import handler\n" + textwrap.dedent(source))

    def config(self, **routes: str) -> Config:
        """Each route's `handlers` stand on a line of their own: 6, 10, ..."""
        lines = [
            "defaults:",
            "  timeout: 45s",
            "  retry: {attempts: 7, backoff: fixed, base: 2s, cap: 2m}",
            "routes:",
        ]
        for name, modules in routes.items():
            lines += [f"  {name}:", f"    handlers: [{modules}]"]
            lines += ["    provider: stripe", "    secrets: [env:A]"]
        file = self.folder / "routes.yaml"
        file.write_text("\n".join(lines))
        return load_config(file)

    def load(self, **routes: str) -> Registry:
        return load_registry(self.config(**routes))

    def refused(self, **routes: str) -> list[Problem]:
        with pytest.raises(ConfigInvalid) as refused:
            self.load(**routes)
        return list(refused.value.problems)

    def problems(self, **routes: str) -> list[Problem]:
        """Those that are told of the routes."""
        problems = self.refused(**routes)
        assert {problem.file for problem in problems} == {str(self.folder / "routes.yaml")}
        return problems

    def problem(self, source: str) -> Problem:
        """What is wrong with a module on the only route."""
        self.module("one", source)
        (problem,) = self.problems(stripe="one")
        assert (problem.line, problem.key) == (6, "routes.stripe.handlers[0]")
        return problem


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield Project(tmp_path)
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_decorator_returns_the_function_unchanged() -> None:
    async def paid(event: Event, ctx: Any) -> None: ...

    assert handler("invoice.paid")(paid) is paid
    assert inspect.iscoroutinefunction(paid)


def test_the_decorator_keeps_what_it_was_given_on_the_function() -> None:
    @handler(
        "invoice.*",
        "charge.failed",
        timeout="90s",
        attempts=20,
        backoff="fixed",
        base=1.5,
        cap=timedelta(hours=1),
        name="billing",
    )
    async def paid(event: Event, ctx: Any) -> None: ...

    spec = spec_of(paid)
    assert spec is not None
    assert spec.types == ("invoice.*", "charge.failed")
    assert spec.timeout == timedelta(seconds=90)
    assert spec.name == "billing"
    assert spec.retry(DEFAULTS) == RetryPolicy(
        attempts=20,
        backoff=Backoff.FIXED,
        base=timedelta(seconds=1.5),
        cap=timedelta(hours=1),
    )


@pytest.mark.parametrize("options", [{}, {"attempts": 3}, {"base": 0}, {"cap": "5m"}])
def test_what_the_function_does_not_say_is_as_configured(options: dict[str, Any]) -> None:
    @handler("a", **options)
    async def paid(event: Event, ctx: Any) -> None: ...

    spec = spec_of(paid)
    assert spec is not None
    retry = spec.retry(DEFAULTS)
    assert retry.attempts == options.get("attempts", 7)
    assert retry.backoff is Backoff.FIXED
    assert retry.base == (timedelta(0) if "base" in options else timedelta(seconds=2))
    assert retry.cap == (timedelta(minutes=5) if "cap" in options else timedelta(minutes=2))


@pytest.mark.parametrize(
    ("types", "options", "error", "message"),
    [
        ((), {}, TypeError, '@handler without event types; write @handler("invoice.paid")'),
        ((print,), {}, TypeError, '@handler without event types; write @handler("invoice.paid")'),
        ((5,), {}, TypeError, "@handler: type: found 5; expected text such as invoice.*"),
        (
            ("a", ""),
            {},
            ValueError,
            "@handler: type: found ''; expected an event type such as invoice.*",
        ),
        (
            ("a b",),
            {},
            ValueError,
            "@handler: type: found 'a b'; expected an event type such as invoice.*",
        ),
        (
            ("a",),
            {"timeout": "soon"},
            ValueError,
            f"@handler: timeout: found 'soon'; expected {DURATION}",
        ),
        (
            ("a",),
            {"timeout": True},
            ValueError,
            f"@handler: timeout: found true; expected {DURATION}",
        ),
        (
            ("a",),
            {"timeout": [5]},
            ValueError,
            f"@handler: timeout: found a list; expected {DURATION}",
        ),
        (
            ("a",),
            {"timeout": float("nan")},
            ValueError,
            f"@handler: timeout: found nan; expected {DURATION}",
        ),
        (
            ("a",),
            {"timeout": float("inf")},
            ValueError,
            f"@handler: timeout: found inf; expected {DURATION}",
        ),
        (("a",), {"timeout": 0}, ValueError, "@handler: timeout: found 0; expected 1ms to 1d"),
        (
            ("a",),
            {"timeout": "25h"},
            ValueError,
            "@handler: timeout: found '25h'; expected 1ms to 1d",
        ),
        (("a",), {"base": -1}, ValueError, "@handler: base: found -1; expected 0s to 36500d"),
        (("a",), {"cap": -0.5}, ValueError, "@handler: cap: found -0.5; expected 0s to 36500d"),
        (
            ("a",),
            {"attempts": 0},
            ValueError,
            "@handler: attempts: found 0; expected a whole number from 1 to 20",
        ),
        (
            ("a",),
            {"attempts": 21},
            ValueError,
            "@handler: attempts: found 21; expected a whole number from 1 to 20",
        ),
        (
            ("a",),
            {"attempts": "5"},
            TypeError,
            "@handler: attempts: found '5'; expected a whole number from 1 to 20",
        ),
        (
            ("a",),
            {"attempts": True},
            TypeError,
            "@handler: attempts: found true; expected a whole number from 1 to 20",
        ),
        (
            ("a",),
            {"backoff": "linear"},
            ValueError,
            "@handler: backoff: found 'linear'; expected one of exponential, fixed",
        ),
        (
            ("a",),
            {"name": ""},
            ValueError,
            "@handler: name: found ''; expected letters, digits and . _ : -",
        ),
        (
            ("a",),
            {"name": "a b"},
            ValueError,
            "@handler: name: found 'a b'; expected letters, digits and . _ : -",
        ),
        (
            ("a",),
            {"name": 5},
            ValueError,
            "@handler: name: found 5; expected letters, digits and . _ : -",
        ),
    ],
)
def test_bad_arguments_are_refused_when_the_module_is_imported(
    types: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as refused:
        handler(*types, **options)
    assert str(refused.value) == message


def test_two_decorators_on_one_function_are_refused() -> None:
    async def paid(event: Event, ctx: Any) -> None: ...

    handler("a")(paid)
    with pytest.raises(TypeError, match="twice on one function; give one @handler all the types"):
        handler("b")(paid)


def test_what_cannot_carry_the_mark_is_refused() -> None:
    decorate: Callable[[Any], Any] = handler("a")
    with pytest.raises(
        TypeError, match="@handler on <built-in function len>, which is not an async"
    ):
        decorate(len)


def test_the_functions_that_a_module_defines_subscribe_in_their_order(project: Project) -> None:
    project.module(
        "shop.shared",
        """
        @handler("imported")
        async def elsewhere(event, ctx): ...
        """,
    )
    project.module(
        "shop.billing",
        """
        from shop.shared import elsewhere

        @handler("invoice.*", timeout=5, attempts=3)
        async def zeta(event, ctx): ...

        @handler("*", name="everything")
        async def alpha(event, /, context): ...

        async def plain(event, ctx): ...
        again = zeta
        """,
    )
    registry = project.load(stripe="shop.billing", second="shop.billing, shop.shared")
    zeta, alpha = registry.subscriptions[:2]
    assert [(item.route, item.handler) for item in registry.subscriptions] == [
        ("stripe", "shop.billing.zeta"),
        ("stripe", "everything"),
        ("second", "shop.billing.zeta"),
        ("second", "everything"),
        ("second", "shop.shared.elsewhere"),
    ]
    module = sys.modules["shop.billing"]
    assert zeta == Subscription(
        route="stripe",
        handler="shop.billing.zeta",
        types=("invoice.*",),
        function=module.zeta,
        timeout=timedelta(seconds=5),
        retry=RetryPolicy(attempts=3, backoff=Backoff.FIXED, base=DEFAULTS.base, cap=DEFAULTS.cap),
    )
    assert (alpha.timeout, alpha.retry) == (timedelta(seconds=45), DEFAULTS)


def test_a_function_under_another_decorator_is_a_handler_too(project: Project) -> None:
    project.module(
        "one",
        """
        import functools

        def traced(function):
            @functools.wraps(function)
            async def wrapper(*args, **kwargs):
                return await function(*args, **kwargs)
            return wrapper

        @handler("a")
        @traced
        async def inside(event, ctx): ...

        @traced
        @handler("a")
        async def outside(event, ctx): ...
        """,
    )
    registry = project.load(stripe="one")
    assert registry.for_event("stripe", "a") == ("one.inside", "one.outside")
    functions = [item.function for item in registry.subscriptions]
    assert functions == [sys.modules["one"].inside, sys.modules["one"].outside]


def test_the_working_directory_comes_before_everything_else(project: Project) -> None:
    other = project.folder / "installed"
    other.mkdir()
    (other / "one.py").write_text("raise RuntimeError('the wrong module')")
    sys.path.insert(0, str(other))
    project.module("one", '@handler("a")\nasync def f(event, ctx): ...\n')
    assert project.load(stripe="one").for_event("stripe", "a") == ("one.f",)
    assert sys.path[0] == str(project.folder)


def test_a_route_without_handlers_has_no_subscriptions(project: Project) -> None:
    registry = project.load(stripe="")
    assert registry.subscriptions == ()
    assert registry.for_event("stripe", "a") == ()


def test_an_event_goes_to_the_handlers_whose_globs_match_its_type(project: Project) -> None:
    project.module(
        "one",
        """
        @handler("invoice.paid", "charge.*")
        async def first(event, ctx): ...

        @handler("*.paid")
        async def second(event, ctx): ...
        """,
    )
    registry = project.load(stripe="one", other="one")
    for _ in range(2):
        assert registry.for_event("stripe", "invoice.paid") == ("one.first", "one.second")
        assert registry.for_event("stripe", "charge.failed") == ("one.first",)
        assert registry.for_event("stripe", "Invoice.paid") == ("one.second",)
        assert registry.for_event("stripe", "ping") == ()
        assert registry.for_event("nowhere", "invoice.paid") == ()


def test_what_is_remembered_of_strange_types_is_bounded(project: Project) -> None:
    project.module("one", '@handler("*")\nasync def f(event, ctx): ...\n')
    registry = project.load(stripe="one")
    for number in range(REMEMBERED_TYPES + 100):
        assert registry.for_event("stripe", f"type.{number}") == ("one.f",)
    assert registry._remembered.cache_info().currsize == REMEMBERED_TYPES
    misses = registry._remembered.cache_info().misses
    assert registry.for_event("stripe", "x" * 100_000) == ("one.f",)
    assert registry._remembered.cache_info().misses == misses


def test_a_module_that_does_not_exist_is_a_problem(project: Project) -> None:
    (problem,) = project.problems(stripe="handlers_gone.billing")
    assert problem == Problem(
        file=str(project.folder / "routes.yaml"),
        line=6,
        key="routes.stripe.handlers[0]",
        found="handlers_gone.billing, which does not import:"
        " ModuleNotFoundError: No module named 'handlers_gone'",
        expected=f"a module that imports from {project.folder}",
    )


@pytest.mark.parametrize(
    ("source", "line", "told"),
    [
        (
            "import nothing_of_that_name",
            2,
            "ModuleNotFoundError: No module named 'nothing_of_that_name'",
        ),
        ("\n\n1 / 0", 4, "ZeroDivisionError: division by zero"),
        ("import json\njson.loads('{')", 3, "(char 1)"),
        ("async def f(:", 2, "(one.py, line 2)"),
        ("import sys\nsys.exit('no')", 3, "SystemExit: no"),
        ("raise ValueError('first\\nsecond')", 2, "ValueError: first"),
        ("raise ValueError('whsec_hunter2')", 2, "ValueError"),
        (
            '\n@handler("a", attempts=21)\nasync def f(event, ctx): ...',
            3,
            "@handler: attempts: found 21; expected a whole number from 1 to 20",
        ),
        (
            "\n@handler\nasync def f(event, ctx): ...",
            3,
            'TypeError: @handler without event types; write @handler("invoice.paid")',
        ),
    ],
)
def test_a_module_that_fails_to_import_is_told_with_its_line(
    source: str, line: int, told: str, project: Project
) -> None:
    project.module("one", source)
    (problem,) = project.refused(stripe="one")
    assert (problem.file, problem.line) == ("one.py", line)
    assert problem.key == "routes.stripe.handlers[0]"
    assert problem.found.startswith("one, which does not import: ")
    assert problem.found.endswith(told)
    assert "\n" not in problem.found
    assert "hunter2" not in problem.found
    listed = f"({project.folder / 'routes.yaml'}:6 lists it)"
    assert problem.expected == f"a module that imports from {project.folder} {listed}"


def test_a_module_that_fails_is_run_once_however_many_routes_want_it(project: Project) -> None:
    project.module(
        "one",
        """
        with open("runs", "a") as file:
            file.write("x")
        raise RuntimeError("no")
        """,
    )
    first, second = project.refused(stripe="one", other="one")
    assert (first.key, second.key) == ("routes.stripe.handlers[0]", "routes.other.handlers[0]")
    assert "routes.yaml:6 lists it" in first.expected
    assert "routes.yaml:10 lists it" in second.expected
    assert (project.folder / "runs").read_text() == "x"


def test_a_folder_that_another_package_hides_is_told(project: Project) -> None:
    """`email` is a package of the standard library; a folder of that name without an
    __init__.py gives way to it."""
    (project.folder / "email").mkdir()
    (project.folder / "email/billing.py").write_text("")
    (problem,) = project.problems(stripe="email.billing")
    assert problem.found.endswith(
        "(another package email comes first: put an __init__.py into email/)"
    )


def test_a_module_without_handlers_is_a_problem(project: Project) -> None:
    project.module("shared", '@handler("a")\nasync def f(event, ctx): ...\n')
    problem = project.problem("from shared import f\nasync def g(event, ctx): ...")
    assert problem.found == "one, which defines no @handler"
    assert problem.expected == "a module that defines one"


@pytest.mark.parametrize(
    ("definition", "found"),
    [
        ("def f(event, ctx): ...", "def f (one.py:2), which is not async"),
        ("async def f(event, ctx):\n    yield", "def f (one.py:2), which is not async"),
        ("async def f(): ...", "async def f() (one.py:2)"),
        ("async def f(event): ...", "async def f(event) (one.py:2)"),
        ("async def f(event, ctx, more): ...", "async def f(event, ctx, more) (one.py:2)"),
        ("async def f(event, ctx, more=1): ...", "async def f(event, ctx, more=1) (one.py:2)"),
        ("async def f(event, *, ctx): ...", "async def f(event, ctx) (one.py:2)"),
        ("async def f(*args): ...", "async def f(*args) (one.py:2)"),
        ("async def f(event, ctx, **more): ...", "async def f(event, ctx, **more) (one.py:2)"),
        ("class f: ...", "f, which is no function"),
    ],
)
def test_what_is_not_an_async_function_of_event_and_ctx_is_a_problem(
    definition: str, found: str, project: Project
) -> None:
    problem = project.problem(f'@handler("a")\n{definition}\n')
    assert problem.found == found
    assert problem.expected == "async def f(event, ctx) at the top of the module"


def test_what_only_behaves_like_a_function_is_a_problem(project: Project) -> None:
    problem = project.problem(
        """
        import functools
        async def g(x, event, ctx): ...
        f = handler("a")(functools.partial(g, 1))
        """
    )
    assert problem.found == "f, which is no function"


def test_a_method_would_be_forgotten_and_is_a_problem(project: Project) -> None:
    problem = project.problem(
        """
        class Billing:
            @handler("a")
            async def paid(self, event, ctx): ...
        """
    )
    assert problem.found == "Billing.paid, a method"
    assert problem.expected == "async def paid(event, ctx) at the top of the module"


def test_a_handler_that_a_later_one_of_its_name_overwrites_is_a_problem(project: Project) -> None:
    problem = project.problem(
        """
        @handler("a")
        async def paid(event, ctx): ...

        @handler("b")
        async def paid(event, ctx): ...
        """
    )
    assert problem.found == "two handlers named paid (one.py:4 and one.py:7)"
    assert problem.expected == "one name each"


def test_two_handlers_of_one_name_on_one_route_are_a_problem(project: Project) -> None:
    project.module("one", '@handler("a", name="billing")\nasync def f(event, ctx): ...\n')
    project.module("two", '\n@handler("b", name="billing")\nasync def g(event, ctx): ...\n')
    (problem,) = project.problems(stripe="one, two")
    assert (problem.line, problem.key) == (6, "routes.stripe.handlers[1]")
    assert problem.found == "two handlers named billing (one.py:2 and two.py:3)"
    assert problem.expected == "one name each: @handler(..., name=...)"
    registry = project.load(stripe="one", other="two")
    assert len(registry.subscriptions) == 2


def test_a_wrapped_handler_is_told_by_the_line_of_its_own_def(project: Project) -> None:
    problem = project.problem(
        """
        import functools

        def traced(function):
            @functools.wraps(function)
            async def wrapper(*args):
                return await function(*args)
            return wrapper

        @handler("a", name="same")
        @traced
        async def f(event, ctx): ...

        @handler("b", name="same")
        @traced
        async def g(event, ctx): ...
        """
    )
    assert problem.found == "two handlers named same (one.py:11 and one.py:15)"


def test_a_failure_is_told_by_the_line_of_the_user_not_by_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = Path(handler_modules.__file__).parents[3]
    monkeypatch.chdir(root)
    assert handler_modules._is_theirs(root / "handlers" / "billing.py")
    assert not handler_modules._is_theirs(root / "gateway" / "registry" / "decorator.py")
    assert not handler_modules._is_theirs(root / ".venv/lib/site-packages/stripe/__init__.py")
    assert not handler_modules._is_theirs(Path("/usr/lib/python3/json/decoder.py"))


def test_a_base_above_the_cap_of_the_configuration_is_a_problem(project: Project) -> None:
    problem = project.problem('@handler("a", base="1h")\nasync def f(event, ctx): ...\n')
    assert problem.found == "one.f (one.py:2) with base 1h and cap 2m"
    assert problem.expected == "a cap that is at least base"


def test_all_problems_of_all_modules_are_reported_at_once(project: Project) -> None:
    project.module("one", '@handler("a")\ndef f(event, ctx): ...\n@handler("a")\nclass g: ...\n')
    project.module("two", "1 / 0")
    project.module("good", '@handler("a")\nasync def f(event, ctx): ...\n')
    found = project.refused(stripe="one, good", other="two, gone")
    assert [(problem.line, problem.key) for problem in found] == [
        (6, "routes.stripe.handlers[0]"),
        (6, "routes.stripe.handlers[0]"),
        (2, "routes.other.handlers[0]"),
        (10, "routes.other.handlers[1]"),
    ]


@pytest.mark.parametrize("option", ["order_by", "once_per"])
@pytest.mark.parametrize("key", ["data.object.email", "data.object", "data.object.email.host"])
def test_a_key_that_nobody_is_to_see_is_refused(option: str, key: str, project: Project) -> None:
    project.module("one", f'@handler("*", {option}="{key}")\nasync def one(e, c): ...')
    config = project.config(stripe="one")
    redaction = Redaction((FieldPath.parse("data.*.email"),))
    redacted = replace(config.routes[0], redaction=redaction)
    with pytest.raises(ConfigInvalid) as refused:
        load_registry(replace(config, routes=(redacted,)))
    (problem,) = refused.value.problems
    assert f'{option}="{key}", where the route redacts data.*.email' in problem.found
    load_registry(config)


def test_a_redacted_value_is_no_part_of_a_key_either(project: Project) -> None:
    project.module("one", '@handler("*", once_per=["id", "mail"])\nasync def one(e, c): ...')
    config = project.config(stripe="one")
    redaction = Redaction((FieldPath.parse("mail"),))
    with pytest.raises(ConfigInvalid, match='once_per="id, mail", where the route redacts mail'):
        load_registry(replace(config, routes=(replace(config.routes[0], redaction=redaction),)))


def test_a_key_beside_a_redacted_field_is_taken(project: Project) -> None:
    project.module("one", '@handler("*", order_by="data.object.id")\nasync def one(e, c): ...')
    config = project.config(stripe="one")
    redaction = Redaction((FieldPath.parse("data.object.email"),))
    load_registry(replace(config, routes=(replace(config.routes[0], redaction=redaction),)))


FORMER = """
@handler("a", formerly={first})
async def fulfil(event, ctx): ...


@handler("a", formerly={second})
async def mail(event, ctx): ...
"""


def test_former_names_are_read(project: Project) -> None:
    project.module("one", FORMER.format(first="['one.on_checkout']", second="()"))
    fulfil, mail = project.load(stripe="one").subscriptions
    assert (fulfil.formerly, mail.formerly) == (("one.on_checkout",), ())
    assert fulfil.label == fulfil.handler == "one.fulfil"


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (["one.mail"], [], "one.fulfil formerly one.mail, but there is a handler one.mail on"),
        (["one.fulfil"], [], "one.fulfil formerly one.fulfil, but there is a handler"),
        (["a"], ["a"], "one.mail formerly a, which one.fulfil claims, too"),
    ],
)
def test_a_former_name_that_is_not_free_is_refused(
    project: Project, first: list[str], second: list[str], found: str
) -> None:
    project.module("one", FORMER.format(first=first, second=second))
    [problem] = project.problems(stripe="one")
    assert problem.found.startswith(found)


def test_a_module_on_two_routes_may_have_former_names(project: Project) -> None:
    project.module("one", FORMER.format(first="['one.on_checkout']", second="()"))
    assert len(project.load(stripe="one", other="one").subscriptions) == 4


@pytest.mark.parametrize("formerly", ["one.on_checkout", ["not a name"], [7], 7])
def test_former_names_are_a_list_of_names(formerly: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"@handler: formerly: found .*; expected"):
        handler("a", formerly=formerly)
