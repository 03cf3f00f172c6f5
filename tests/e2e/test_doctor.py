"""`gateway doctor` as a command: here, from afar, and where nothing works."""

import json
from typing import Any

from tests.support.ports import free_port
from tests.support.processes import STRIPE_SECRET, Project, stripe_request
from tests.support.waiting import until

TOKEN = "a-token-of-the-suites-own"


def by_about(text: str) -> dict[str, list[dict[str, Any]]]:
    grouped: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(text):
        assert finding.keys() == {"level", "about", "found", "advice"}
        grouped.setdefault(finding["about"], []).append(finding)
    return grouped


async def test_doctor_here_and_from_afar(project: Project) -> None:
    with project.serve(GATEWAY_ADMIN_TOKEN=TOKEN) as serving, project.process("worker"):
        await serving.ready()
        await serving.post(*stripe_request("evt_1"))
        url = {"GATEWAY_PUBLIC_URL": serving.url, "GATEWAY_ADMIN_TOKEN": TOKEN}

        def counted() -> bool:
            here = by_about(project.run("doctor", "--json", **url).stdout)
            return any("the last event came" in f["found"] for f in here["route stripe"]) and any(
                "1 alive" in f["found"] for f in here["workers"]
            )

        await until(counted)
        here = project.run("doctor", "--json", **url)
        far = project.run("doctor", "--json", "--url", serving.url, **url)
        for result in (here, far):
            assert result.returncode == 1, "fsync is off in tests"
            found = by_about(result.stdout)
            assert any("4 handlers load" in f["found"] for f in found["handlers"])
            assert any("1 alive" in f["found"] for f in found["workers"])
            assert STRIPE_SECRET not in result.stdout
            assert TOKEN not in result.stdout
        assert by_about(here.stdout)["public URL"][-1]["level"] == "ok"
        never = by_about(here.stdout)["route github"]
        assert any(f"{serving.url}/webhooks/github" in (f["advice"] or "") for f in never)
        text = project.run("doctor", **url).stdout
    assert text.startswith("problem")
    assert text.rstrip().endswith("in order")


def test_doctor_where_nothing_works_is_no_traceback(project: Project) -> None:
    (project.directory / "config/routes.yaml").write_text("routes: [")
    result = project.run(
        "doctor",
        GATEWAY_DATABASE_URL=f"postgresql://ann:hush@127.0.0.1:{free_port()}/none",
        GATEWAY_REDIS_URL=f"redis://:hush@127.0.0.1:{free_port()}",
        GATEWAY_LEASE="soon",
        GATEWAY_PUBLIC_URL=f"http://127.0.0.1:{free_port()}",
    )
    assert result.returncode == 1
    assert result.stderr == ""
    for said in ("GATEWAY_LEASE", "routes.yaml", "Postgres cannot be reached", "does not answer"):
        assert said in result.stdout
    assert "hush" not in result.stdout
    assert "Traceback" not in result.stdout
