"""The exam of docs/rehearse.md: 30 handlers, written without knowledge of the rehearsal's code."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.support.processes import Project

EXAM = Path(__file__).parents[1] / "rehearsed" / "exam"
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
MISSED = {"handlers.invoices.book_revenue"}
"""Wrong handlers that are called safe, with a note."""
FALSE_ALARMS = {"handlers.shipping.book_courier"}
"""Right handlers with a finding."""
PLANTED = {
    "handlers.credits.award_points": "overlap",
    "handlers.credits.sum_lifetime_value": "overlap",
    "handlers.invoices.collect_elsewhere": "called",
    "handlers.mails.send_receipt": "called",
    "handlers.mails.remind": "escape",
    "handlers.payments.transfer_to_seller": "lost",
    "handlers.payments.pay_out": "called",
    "handlers.repos.greet_author": "memory",
    "handlers.repos.queue_review": "order",
    "handlers.subscriptions.open_workspace": "lost",
    "handlers.subscriptions.mirror_subscription": "order",
    "handlers.subscriptions.replace_items": "race",
    "handlers.subscriptions.choose_primary": "overlap",
    "handlers.subscriptions.keep_tax_profile": "escape",
}
"""The fault that each wrong handler was written for: another finding would be found by accident."""


EXPECTED = yaml.safe_load((EXAM / "expected.yaml").read_text(encoding="utf-8"))
MODULES = sorted({one["name"].rpartition(".")[0] for one in EXPECTED})


def test_half_of_them_are_right() -> None:
    assert [one["verdict"] for one in EXPECTED].count("right") == len(EXPECTED) / 2 == 15


@pytest.mark.parametrize("module", MODULES)
def test_the_exam_ends_as_the_page_says(tmp_path: Path, module: str) -> None:
    project = Project(tmp_path, NOWHERE, "redis://127.0.0.1:1/0")
    shutil.copytree(EXAM, tmp_path, dirs_exist_ok=True)
    verdicts = {one["name"]: one["verdict"] for one in EXPECTED if one["name"].startswith(module)}
    result = project.run("rehearse", "--json", *verdicts, STRIPE_API_KEY="sk_test_exam")
    reports = json.loads(result.stdout)
    found = {report["handler"]: report["verdict"] for report in reports}
    assert found.keys() == verdicts.keys(), result.stderr
    safe = {name for name, verdict in found.items() if verdict == "safe_to_run_again"}
    right = {name for name, verdict in verdicts.items() if verdict == "right"}
    assert safe == (right - FALSE_ALARMS) | (MISSED & verdicts.keys())
    faults = {r["handler"]: {f["fault"] for f in r["findings"]} for r in reports}
    wrong = {name: PLANTED[name] for name in verdicts.keys() - right - MISSED}
    assert {name: fault for name, fault in wrong.items() if fault not in faults[name]} == {}
