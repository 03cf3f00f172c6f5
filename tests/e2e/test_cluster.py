"""The parts of `make cluster`: its audit can fail, its faults are there, its cuts are silent."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.cluster.__main__ import MARKS
from tests.cluster.attack import Outcome
from tests.cluster.faults import FAULTS, SHAPES, TELLING
from tests.cluster.network import INSIDE, UNSHARE, can_make_namespaces
from tests.cluster.report import render_markdown, replication
from tests.e2e.test_torture import audit, evidence, record
from tests.support.needs import lacks
from tests.support.waiting import PATIENCE_S
from tests.tools import find
from tests.torture.flow import Flow
from tests.torture.page import PAGE

ROOT = Path(__file__).parents[2]


def test_every_fault_has_a_function_and_is_told_on_the_page() -> None:
    assert SHAPES.keys() == FAULTS.keys() >= set(TELLING)
    page = PAGE.read_text(encoding="utf-8")
    for fault in SHAPES:
        assert f"| `{fault}` |" in page
    for mark in MARKS.values():
        assert f"<!-- {mark} -->" in page


def outcome(*, is_synchronous: bool, missing: int = 0) -> Outcome:
    result = audit(record(), evidence())
    return Outcome(result=result, is_synchronous=is_synchronous, network="none", missing=missing)


def test_what_the_promoted_side_lacks_is_a_failure_only_where_commits_waited_for_it() -> None:
    assert outcome(is_synchronous=True).problems == []
    assert outcome(is_synchronous=True, missing=2).problems == [
        "2 acknowledged events were not on the promoted side"
    ]
    asynchronous = outcome(is_synchronous=False, missing=2)
    assert asynchronous.problems == []
    assert "2 acknowledged events were not" in replication(asynchronous)


def test_calls_and_turns_may_be_forgotten_only_where_nobody_waited() -> None:
    flow = Flow(out_of_order=3, singles_off=1)
    result = replace(audit(record(), evidence()), flow=flow, problems=flow.problems)
    assert replace(outcome(is_synchronous=True), result=result).problems == flow.problems
    assert replace(outcome(is_synchronous=False), result=result).problems == []


def test_losses_and_doubles_on_the_promoted_side_are_failures_either_way() -> None:
    found = evidence()
    found.effects["a", "count"] += 1
    del found.effects["b", "tally"]
    result = audit(record(), found)
    for is_synchronous in (True, False):
        judged = replace(outcome(is_synchronous=is_synchronous), result=result)
        assert {"lost 1", "applied twice 1"} <= set(judged.problems)


def test_an_outcome_survives_json_and_becomes_a_page() -> None:
    found = outcome(is_synchronous=False, missing=1)
    again = Outcome.from_json(json.loads(json.dumps(found.as_json())))
    assert render_markdown(again) == render_markdown(found)
    assert "| kill-worker | 1 | 2 | 0 | 0 | 9.0 s | 2.0 s |" in render_markdown(found)


SILENT = """
import socket, subprocess, sys, time
from tests.cluster.network import BACK, Namespaces

network = Namespaces()
network.open(["one", "two"])
host = network.hosts["one"]
listen = "import socket, time; s = socket.create_server(('0.0.0.0', 7000)); time.sleep(60)"
listener = subprocess.Popen([*host.enter, sys.executable, "-c", listen])


def answers(address: str) -> str:
    try:
        socket.create_connection((address, 7000), timeout=0.3).close()
    except OSError as error:
        return type(error).__name__
    return "answers"


try:
    while answers(host.address) != "answers":
        assert listener.poll() is None
        time.sleep(0.02)
    assert answers(host.front) == "answers"
    network.cut("one", only=BACK)
    assert (answers(host.address), answers(host.front)) == ("TimeoutError", "answers")
    network.cut("one")
    assert answers(host.front) == "TimeoutError"
    network.heal("one")
    assert (answers(host.address), answers(host.front)) == ("answers", "answers")
    assert answers(network.hosts["two"].address) == "ConnectionRefusedError"
finally:
    listener.kill()
    listener.wait()
"""


def test_a_host_that_is_cut_off_is_silent_and_leaves_nothing_behind() -> None:
    if not can_make_namespaces():
        lacks("root for network namespaces" if find("ip") else "ip")
    command = [*UNSHARE, sys.executable, "-c", SILENT]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {INSIDE: "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert "one" not in left.stdout.split()
