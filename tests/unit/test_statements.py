"""Which SQL of a handler is refused before it is sent."""

import pytest

from gateway.base.errors import StatementRefused
from gateway.worker.statements import check_statement

ENDS_THE_TRANSACTION = [
    "commit",
    "COMMIT WORK",
    "cOmMiT",
    "commit;",
    "end",
    "end transaction",
    "abort",
    "abort work",
    "rollback",
    "rollback and chain",
    "rollback transaction",
    "commit and chain",
    "commit and no chain",
    "commit prepared 'p1'",
    "prepare transaction 'p1'",
    "PREPARE\n  TRANSACTION $$p1$$",
    " \n-- a comment\n/* and /* another */ one */ commit",
    "/**/commit/**/and/**/chain",
    "commit; begin",
    "select 1; commit; begin; select 2",
    "select ';'; commit",
    "select 'it''s'; commit; begin",
    "select '\\ is no escape'; commit; begin",
    "select $$;$$; rollback; begin",
    "select $tag$ $$ ; $tag$; commit; begin; select 1/0",
    'select 1 as "a;b"; end; begin',
    'select 1 as "a""b"; end; begin',
    ";;commit",
    "create function f() returns int language sql begin atomic select 1; end; commit",
    "select begin atomic from t; commit",
    "create function f(begin atomic) returns int language sql as 'select 1'; commit",
    "create function f() returns begin.atomic language sql as 'select 1'; commit",
    "create function f() returns int set search_path = begin, atomic as 'select 1'; commit",
    "create function f(begin int, atomic int) returns int return begin + atomic; commit",
    "create function f() returns int begin atomic select 1 as end; end; commit",
    "prepare transaction e'p1'",
    "prepare transaction U&'p1' uescape '!'",
    "select '\\'; commit; select ''",
    "select e'\\\\'; commit",
    "select e'it\\'s'; commit",
    "select u&'\\'; commit",
    "select 1 as a$b$; commit; select 1 as b$b$",
    "select $1; commit; select $$$$",
    "select 'quite long'" + " -- " + "x" * 3_000 + "\n; commit",
]

BREAKS_THE_SESSION = [
    "reset all",
    "RESET /* everything */ ALL",
    "deallocate all",
    "DEALLOCATE PREPARE ALL",
    "select 1; reset all",
]

WAITS_FOR_DATA = [
    "copy t from stdin",
    "COPY t (a, b) FROM STDIN WITH (FORMAT csv, HEADER)",
    'copy "t" /* now */ from -- here\n stdin',
    "copy binary t from stdin",
    "copy t to stdout",
    "select 1; copy (select ')' from t) to stdout (format csv)",
]

PASSES = [
    "copy t from '/tmp/from stdin'",
    "copy t to program 'cat > /dev/stdout'",
    "copy \"from stdin\" to '/tmp/t'",
    "select copy, stdin from t",
    "",
    "select 1",
    "insert into t (id) values (1) on conflict (id) do update set note = 'commit'",
    "insert into t (note) values ('a; commit')",
    "insert into t (note) values ('it''s; commit')",
    "insert into t (note) values ($$a; commit$$), ($a$b; $$; commit$a$)",
    'select "commit", "a; rollback" from "t; end"',
    "select commit, rollback from abort",
    "select 1 -- ; commit",
    "/* ; commit */ select 1 /* /* ; */ ; commit */",
    "select case when true then 1 end; select 2",
    "select 1 as end; select 2",
    "create temp table t on commit drop as select 1",
    "savepoint a; rollback to a; release a",
    "rollback to savepoint a",
    "ROLLBACK WORK TO a",
    "rollback /* now */ transaction to savepoint a",
    "begin",
    "start transaction",
    "prepare transaction_totals as select 1",
    "prepare transaction as select 1",
    "prepare transaction (int) as select $1",
    "deallocate transaction_totals",
    'deallocate "all"',
    "reset work_mem",
    "reset role",
    "do $$ begin perform 1; end $$",
    "create function f() returns int language plpgsql as $f$ begin return 1; end; $f$",
    "create function f() returns int language sql begin atomic select 1; end",
    "create function f() returns int language sql begin /* c */ atomic"
    " select case when true then 1 end; select 2; end; select 3",
    "create rule r as on insert to t do also (delete from u; delete from v)",
    "select E'it\\'s; commit'",
    "select e'a' -- '\n 'it\\'s; commit; '",
    "select U&'\\0041; commit; '",
    "select $1$$; commit; $$",
    "select $1$a$; commit; $a$",
    "select 1$$; commit; $$",
    "select $é😀$; commit; $é😀$",
    "select 1; rollbac\u212a",
    "create function f() returns int begin atomic select 1 as end; select 2; end; select 3",
    "create function f() returns int begin atomic select 1 end; select t.end from t; end",
    'create or replace procedure p() begin atomic; select 1 as "end"; end; select 3',
    "create function f() returns int begin atomic"
    " select case when true then case 1 when 1 then 2 end end; select 2; end; select 3",
    "select 'not terminated; commit; ",
    "select $$not terminated; commit; ",
    "select e'not terminated; commit; \\",
]


@pytest.mark.parametrize("query", ENDS_THE_TRANSACTION)
def test_a_text_that_ends_the_transaction_is_refused(query: str) -> None:
    with pytest.raises(StatementRefused, match=r"was not sent: it would end the transaction"):
        check_statement(query)


def test_a_backslash_in_a_plain_constant_is_read_as_the_session_does() -> None:
    one_string, commit = "select '\\'; commit; '", "select '\\''; commit; --'"
    check_statement(one_string, standard_strings=False)
    check_statement(commit, standard_strings=True)
    for query, standard_strings in ((one_string, True), (commit, False)):
        with pytest.raises(StatementRefused, match="COMMIT"):
            check_statement(query, standard_strings=standard_strings)


@pytest.mark.parametrize("query", BREAKS_THE_SESSION)
def test_a_text_that_breaks_the_session_is_refused(query: str) -> None:
    with pytest.raises(StatementRefused, match=r"was not sent: it would also reset"):
        check_statement(query)


@pytest.mark.parametrize("query", WAITS_FOR_DATA)
def test_a_copy_that_waits_for_data_is_refused(query: str) -> None:
    with pytest.raises(StatementRefused, match=r"was not sent: ctx\.db carries no data"):
        check_statement(query)


@pytest.mark.parametrize("query", PASSES)
def test_any_other_text_passes(query: str) -> None:
    check_statement(query)


def test_the_error_names_the_statement_and_not_its_literals() -> None:
    with pytest.raises(StatementRefused) as refused:
        check_statement("select 'a secret'; commit and chain")
    assert str(refused.value).startswith("`COMMIT AND CHAIN` was not sent: ")
    assert "secret" not in str(refused.value)
