"""What is kept of the error of a failed run."""

import httpx
import pytest

from gateway.worker.policy import summary

URL = "https://mail.example.com/send?to=ann@example.com#x"


def raised(status: int, *, text: str | None = None) -> httpx.HTTPStatusError:
    response = httpx.Response(status, request=httpx.Request("POST", URL))
    if text is not None:
        return httpx.HTTPStatusError(text, request=response.request, response=response)
    with pytest.raises(httpx.HTTPStatusError) as caught:
        response.raise_for_status()
    return caught.value


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            raised(401),
            "HTTPStatusError: HTTP 401 Unauthorized from POST https://mail.example.com/send",
        ),
        (
            raised(303),
            "HTTPStatusError: HTTP 303 See Other from POST https://mail.example.com/send",
        ),
        (raised(599), "HTTPStatusError: HTTP 599 from POST https://mail.example.com/send"),
        (
            raised(401, text="the mail API wants a new key"),
            "HTTPStatusError: the mail API wants a new key",
        ),
        (ValueError("two\nlines"), "ValueError: two lines"),
        (KeyError(), "KeyError"),
    ],
)
def test_an_error_is_one_line_without_the_query_of_a_url(error: Exception, line: str) -> None:
    assert summary(error) == line
