"""The list of safeguards fits the code, the tests and the documentation."""

import ast
from pathlib import Path

import pytest

from tests.run_safeguards import Run, Verdict, judge, read_report, summarize
from tests.safeguards import (
    MIGRATIONS,
    PAGE,
    ROOT,
    SAFEGUARDS,
    Misplaced,
    Safeguard,
    cut,
    write_table,
)


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda s: s.name)
def test_a_safeguard_is_where_it_is_said_to_be(safeguard: Safeguard) -> None:
    file, text = cut(safeguard)
    assert text != (ROOT / file).read_text(encoding="utf-8")
    if file.suffix == ".py":
        ast.parse(text)  # without it, the code is still Python


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda s: s.name)
def test_a_safeguard_has_a_test(safeguard: Safeguard) -> None:
    file, _, name = safeguard.test.partition("::")
    function = name.partition("[")[0]
    module = ast.parse(Path(ROOT / file).read_text(encoding="utf-8"))
    assert function in {getattr(node, "name", None) for node in module.body}


def test_the_page_lists_all_safeguards() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert write_table(page) == page, "make docs"


def write(root: Path, **migrations: str) -> None:
    (root / MIGRATIONS).mkdir(parents=True)
    for name, sql in migrations.items():
        (root / MIGRATIONS / f"{name}.sql").write_text(sql, encoding="utf-8")


def in_schema(file: str, code: str) -> Safeguard:
    return Safeguard("a name", file, code, "", "tests/x.py::test_x")


DEFINED = """create or replace function gateway.settle(
    token uuid  -- a fence; a token
) returns void language plpgsql as $$
begin
    {body};
end
$$;
"""


def test_a_function_is_cut_where_it_is_defined_last(tmp_path: Path) -> None:
    old, new = DEFINED.format(body="fence"), DEFINED.format(body="fence, too")
    write(tmp_path, m0001=old, m0002=f"{new}select 'fence';", m0003="select 'fence';")
    made = cut(in_schema("function gateway.settle", "    fence"), tmp_path)
    assert made.file == Path(MIGRATIONS, "m0002.sql")
    assert (
        made.text == f"{DEFINED.format(body='fence, too').replace('    fence', '')}select 'fence';"
    )


def test_a_function_that_was_defined_anew_without_the_code_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, m0001=DEFINED.format(body="fence"), m0002=DEFINED.format(body="null"))
    with pytest.raises(Misplaced, match=r"0 times in function gateway\.settle \(.*m0002\.sql\)"):
        cut(in_schema("function gateway.settle", "    fence"), tmp_path)
    with pytest.raises(Misplaced, match=r"no migration has function gateway\.lease"):
        cut(in_schema("function gateway.lease", "x"), tmp_path)


def test_an_index_is_cut_where_it_is_made_last(tmp_path: Path) -> None:
    write(tmp_path, m0001="create unique index a;", m0002="create unique index a;", m0003="")
    made = cut(in_schema(MIGRATIONS, "unique "), tmp_path)
    assert made == (Path(MIGRATIONS, "m0002.sql"), "create index a;")
    with pytest.raises(Misplaced, match="no migration has its code"):
        cut(in_schema(MIGRATIONS, "exclude"), tmp_path)


CASE = '<testcase classname="tests.x" name="test_x[{n}]">{result}</testcase>'
RESULTS = {
    "passed": "",
    "failed": '<failure message="AssertionError: 1&#10;more">text</failure>',
    "set-up": '<error message="failed on setup">text</error>',
    "skipped": '<skipped message="needs pgbouncer">text</skipped>',
}


@pytest.mark.parametrize(
    ("results", "verdict", "why"),
    [
        (["passed"], Verdict.NOT_RED, ""),
        (["failed"], Verdict.RED, "AssertionError: 1"),
        (["passed", "failed"], Verdict.RED, "AssertionError: 1"),
        (["passed", "skipped"], Verdict.SKIPPED, "needs pgbouncer"),
        (["set-up", "failed"], Verdict.ERROR, "failed on setup"),
        ([], Verdict.ERROR, "no test was run"),
    ],
)
def test_only_a_test_that_fails_is_red(results: list[str], verdict: Verdict, why: str) -> None:
    cases = [CASE.format(n=n, result=RESULTS[name]) for n, name in enumerate(results)]
    read = read_report(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    assert [case.id for case in read] == [f"tests/x.py::test_x[{n}]" for n in range(len(results))]
    assert judge(Run(read, ""))[:2] == (verdict, why)


def test_a_failure_counts_more_than_what_it_leaves_behind() -> None:
    """Pytest reports a test twice if it fails and its fixtures cannot be torn down either."""
    cases = [CASE.format(n=0, result=RESULTS[name]) for name in ("failed", "set-up")]
    [read] = read_report(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    assert read.verdict is Verdict.RED


def test_the_summary_is_one_line() -> None:
    line = summarize([Verdict.RED, Verdict.RED, Verdict.SKIPPED], 90)
    assert line == "3 safeguards: 2 red, 1 SKIPPED, in 1.5 minutes\n"
