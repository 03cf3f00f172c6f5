"""Which SQL of a handler is refused before it is sent."""

import pytest

from gateway.errors import StatementRefused
from gateway.run.statements import check_statement

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
    "select 'quite long'" + " -- " + "x" * 3_000 + "\n; commit",
]

BREAKS_THE_SESSION = [
    "reset all",
    "RESET /* everything */ ALL",
    "deallocate all",
    "DEALLOCATE PREPARE ALL",
    "select 1; reset all",
]

PASSES = [
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
]


@pytest.mark.parametrize("query", ENDS_THE_TRANSACTION)
def test_a_text_that_ends_the_transaction_is_refused(query: str) -> None:
    with pytest.raises(StatementRefused, match=r"was not sent: it would end the transaction"):
        check_statement(query)


@pytest.mark.parametrize("query", BREAKS_THE_SESSION)
def test_a_text_that_breaks_the_session_is_refused(query: str) -> None:
    with pytest.raises(StatementRefused, match=r"was not sent: it would also reset"):
        check_statement(query)


@pytest.mark.parametrize("query", PASSES)
def test_any_other_text_passes(query: str) -> None:
    check_statement(query)


def test_the_error_names_the_statement_and_not_its_literals() -> None:
    with pytest.raises(StatementRefused) as refused:
        check_statement("select 'a secret'; commit and chain")
    assert str(refused.value).startswith("`COMMIT AND CHAIN` was not sent: ")
    assert "secret" not in str(refused.value)
