"""Whether senders can find it: the public URL, asked from here."""

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import httpx

from gateway.operate.doctor.credentials import LOCAL
from gateway.operate.doctor.finding import Finding, ok, problem, warning
from gateway.operate.doctor.installation import Installation

PUBLIC: Final = "public URL"
ANSWER_S: Final = 5.0
ALIVE: Final = {"status": "alive"}


async def check_public_url(installation: Installation) -> list[Finding]:
    """Asks for /healthz, as a sender would come."""
    url = installation.settings.public_url
    if url is None:
        return [
            warning(
                PUBLIC,
                "GATEWAY_PUBLIC_URL is not set: whether senders get through cannot be checked",
                "set it to what they call, such as https://hooks.example.com",
            )
        ]
    findings = [*_scheme(url)]
    try:
        async with httpx.AsyncClient(timeout=ANSWER_S, follow_redirects=False) as http:
            answer = await http.get(f"{url}/healthz")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        told = f"{url} does not answer: {error or type(error).__name__}"
        advice = (
            "is DNS, the proxy and its certificate in order? Some networks cannot call themselves"
        )
        return [*findings, problem(PUBLIC, told, advice)]
    return [*findings, _judge(url, answer)]


def _scheme(url: str) -> Iterator[Finding]:
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in LOCAL:
        yield warning(
            PUBLIC, f"{url} is not https", "providers demand it, and bodies are readable without"
        )


def _judge(url: str, answer: httpx.Response) -> Finding:
    asked = f"{url}/healthz"
    if answer.is_redirect:
        to = answer.headers.get("location", "elsewhere")
        return problem(
            PUBLIC,
            f"{asked} redirects to {to}",
            "senders do not follow: name the place itself, also in their settings",
        )
    if answer.status_code != httpx.codes.OK:
        return problem(
            PUBLIC,
            f"{asked} answers {answer.status_code}",
            "let the proxy pass every path on, without its prefix, and look whether serve runs",
        )
    try:
        is_ours = answer.json() == ALIVE
    except ValueError:
        is_ours = False
    if not is_ours:
        return problem(
            PUBLIC, f"{asked} answers, but not as a gateway", "the proxy leads somewhere else"
        )
    return ok(PUBLIC, f"{asked} answers as a gateway")
