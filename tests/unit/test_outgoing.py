"""The recorded way out of `ctx.http`."""

from pathlib import Path

import httpx
import pytest

from gateway.testing.outgoing import Outgoing
from tests import support

ROOT = Path(support.__file__).parents[2]
MAIL = "https://mail.example.com/send"


async def test_a_request_is_kept_with_its_place_and_answered_without_being_sent() -> None:
    outgoing = Outgoing(ROOT)
    async with outgoing.client() as http:
        answer = await http.post(
            MAIL, json={"to": "ann@example.com"}, headers={"Idempotency-Key": "gw_1"}
        )
    [call] = outgoing.calls
    assert (answer.status_code, answer.json()) == (200, {})
    assert (call.method, call.url, call.json) == ("POST", MAIL, {"to": "ann@example.com"})
    assert call.idempotency_key == "gw_1"
    file, _, line = (call.place or "").partition(":")
    assert file == "tests/unit/test_outgoing.py"
    assert "http.post(" in (ROOT / file).read_text().splitlines()[int(line) - 1]


async def test_a_place_outside_the_project_is_not_the_users() -> None:
    outgoing = Outgoing(ROOT / "handlers")
    async with outgoing.client() as http:
        await http.get(MAIL)
    assert outgoing.calls[0].place is None


async def test_form_fields_can_be_read() -> None:
    outgoing = Outgoing(ROOT)
    async with outgoing.client() as http:
        await http.post("https://api.stripe.com/v1/customers", data={"email": "", "name": "Ann"})
    assert outgoing.calls[0].form == {"email": "", "name": "Ann"}


async def test_the_answer_that_was_set_last_wins_and_can_be_for_some_times_only() -> None:
    outgoing = Outgoing(ROOT)
    outgoing.answer("*", "https://mail.example.com/*", json={"queued": True})
    outgoing.answer("post", MAIL, status=503, headers={"Retry-After": "7"}, times=1)
    async with outgoing.client() as http:
        first, second = await http.post(MAIL), await http.post(MAIL)
        other = await http.get("https://example.com/")
    assert (first.status_code, first.headers["retry-after"]) == (503, "7")
    assert second.json() == {"queued": True}
    assert other.json() == {}


async def test_a_url_with_brackets_is_matched_as_it_is_written() -> None:
    outgoing = Outgoing(ROOT)
    url = "https://api.example.com/v1/things?expand[]=owner"
    outgoing.answer("GET", url, json={"id": 1})
    async with outgoing.client() as http:
        assert (await http.get(url)).json() == {"id": 1}


async def test_a_failure_that_was_asked_for_is_raised_and_the_call_is_kept() -> None:
    outgoing = Outgoing(ROOT)
    outgoing.fail("POST", MAIL, httpx.ReadTimeout("no answer"))
    async with outgoing.client() as http:
        with pytest.raises(httpx.ReadTimeout, match="no answer"):
            await http.post(MAIL)
    assert len(outgoing.calls) == 1
