"""The errors that an error came from."""

from itertools import islice

from gateway.base.errors import causes
from gateway.http.tls import explain


def test_errors_that_are_causes_of_each_other_are_each_yielded_once() -> None:
    first, second = KeyError("first"), ValueError("second")
    second.__cause__, first.__cause__ = first, second
    assert list(islice(causes(first), 5)) == [first, second]


def test_the_errors_of_a_group_and_their_causes_are_yielded() -> None:
    cause, context, alone = KeyError("cause"), OSError("context"), TypeError("alone")
    member = ValueError("member")
    member.__cause__ = cause
    group = ExceptionGroup("group", [member, ExceptionGroup("inner", [alone])])
    group.__context__ = context
    found = list(causes(group))
    assert found[0] is group
    assert {cause, context, alone, member} <= set(found)
    assert len(found) == 6


def test_what_a_handshake_failed_for_is_looked_for_once() -> None:
    first, second = KeyError("first"), ValueError("second")
    second.__cause__, first.__cause__ = first, second
    assert explain(first) is None
