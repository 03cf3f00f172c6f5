"""docs/quickstart.md, typed as it stands: from an empty directory to a replayed dead letter."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import Project, Running
from tests.support.waiting import until

PAGE: Final = Path(__file__).parents[2] / "docs" / "quickstart.md"
INSTALL, INIT, UP, SEND, BREAK, FAIL, MEND, REPLAY = range(8)
"""The blocks of the page, in its order."""


def _blocks() -> list[str]:
    return re.findall(
        r"^```sh\n(.*?)^```$", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
    )


def _type(project: Project, block: str) -> list[str]:
    """Types the lines of a block, and returns what was answered to each command of ours."""
    if not block.startswith(("gateway ", "cd ")):
        subprocess.run(["sh", "-euc", block], cwd=project.directory, check=True)
        return []
    answers = []
    for line in block.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        if program == "cd":
            project.directory = project.directory / arguments[0]
            continue
        done = project.run(*arguments)
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout)
    return answers


async def _reloaded(up: Running, times: int) -> None:
    await until(lambda: up.output.count("reloaded handlers/billing.py") >= times)


async def _settled(project: Project) -> None:
    """Nothing waits and nothing runs."""

    def settled() -> bool:
        events = json.loads(project.run("events", "--json").stdout)
        return all(not event["deliveries"].keys() & {"pending", "running"} for event in events)

    await until(settled)


@pytest.mark.timeout(300)  # a dozen commands and two reloads, beside other tests
async def test_every_command_of_the_page_does_what_it_says(newcomer: Project) -> None:
    blocks = _blocks()
    assert len(blocks) == REPLAY + 1
    assert "pip install" in blocks[INSTALL]  # done already, or there would be no test
    [made] = _type(newcomer, blocks[INIT])
    assert "cd shop" in made
    assert newcomer.directory.name == "shop"

    [program, *arguments] = shlex.split(blocks[UP])
    assert program == "gateway"
    with newcomer.process(*arguments) as up:
        await up.says("Ready.")
        [sent, _] = _type(newcomer, blocks[SEND])
        assert sent.startswith('200 {"status":"accepted"')
        await _settled(newcomer)
        assert "1 done" in newcomer.run("events").stdout

        _type(newcomer, blocks[BREAK])
        await _reloaded(up, 1)
        [sent, _] = _type(newcomer, blocks[FAIL])
        assert sent.startswith('200 {"status":"accepted"')
        await _settled(newcomer)
        assert "KeyError: 'paid_amount'" in newcomer.run("dead").stdout

        _type(newcomer, blocks[MEND])
        await _reloaded(up, 2)
        [replayed, dead, audit] = _type(newcomer, blocks[REPLAY])
        assert "1 replayed" in replayed
        assert "No dead letters" in dead
        assert "the field was misspelt" in audit
        await _settled(newcomer)
        assert "No dead letters" in newcomer.run("dead").stdout
