"""What a real `serve` opens of Postgres under load: no more than it says."""

import asyncio

import httpx
import pytest

from gateway.ledger.budget import SERVE_CONNECTIONS
from tests.support.ledger import Reader
from tests.support.processes import STRIPE_SECRET, Project, stripe_request
from tests.support.waiting import PATIENCE_S

TOKEN = "token-of-the-suite-0123456789"


@pytest.mark.parametrize("refused", [False, True])
async def test_a_serve_keeps_to_its_budget(project: Project, ledger: Reader, refused: bool) -> None:
    """Webhooks, good or refused, the Admin API, figures and readiness, all at once."""
    secret = "whsec_of_somebody_else" if refused else STRIPE_SECRET
    sent = [stripe_request(f"evt_{n}", secret=secret) for n in range(150)]
    seen: list[int] = []
    query = "select count(*) from pg_stat_activity where application_name like 'gateway %'"
    with project.serve(GATEWAY_ADMIN_TOKEN=TOKEN, GATEWAY_REFUSED_RATE="1000/s") as serving:
        await serving.ready()

        async def look() -> None:
            while True:
                seen.append(await ledger.value(f"{query} and datname = current_database()"))
                await asyncio.sleep(0)

        async with httpx.AsyncClient(
            base_url=serving.url, timeout=PATIENCE_S, headers={"authorization": f"Bearer {TOKEN}"}
        ) as client:
            looking = asyncio.create_task(look())
            asked = ["/api/v1/deliveries", "/api/v1/status", "/readyz", "/metrics"] * 10
            looks = [asyncio.create_task(client.get(path)) for path in asked]
            answers = await serving.post_all(sent)
            await asyncio.gather(*looks)
            looking.cancel()
            await asyncio.wait({looking})
    codes = {answer.status_code for answer in answers}
    assert codes == ({403} if refused else {200})
    assert 4 <= max(seen) <= SERVE_CONNECTIONS
