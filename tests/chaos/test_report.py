"""Tests that the report of a fault injection run states the result, and lists every problem."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chaos.__main__ import report_run
from chaos.invariant_checker import Tally
from chaos.report import RunReport, format_report, list_unexpected_exits
from localcluster.up.restarter import ProcessRecord


def build_run(**overrides: Any) -> RunReport:
    checked_counts = Tally(checked=Counter(evictions=3))
    default_fields: dict[str, Any] = {
        "completed_action_counts": {"start": 2},
        "failures": {},
        "tally": checked_counts,
        "violations": [],
        "settle_seconds": 4.2,
    }
    return RunReport("local", 7, 60, **{**default_fields, **overrides})


def test_report_of_passed_run_lists_actions() -> None:
    report = "\n".join(format_report(build_run()))

    assert build_run().has_passed
    assert "seed 7, 60 s: passed" in report
    assert "done: 2 start" in report
    assert "final state correct 4.2 s after the last action" in report


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ({"violations": ["pod lost", "pod lost"]}, "VIOLATION: pod lost (2 times)"),
        ({"settle_seconds": None, "problems": ["node-1 is cordoned"]}, "PROBLEM: node-1 is cordoned"),
        ({"exited_servers": ["delivery"]}, "EXITED UNEXPECTEDLY: delivery"),
        ({"failures": {"kill source": ["podsource: no"]}}, "action failed: kill source podsource: no"),
        ({"failures": {"start": ["m-1: no"] * 3}}, "MOSTLY FAILED, so the run does not test it: start"),
        ({"tally": Tally()}, "checked: NOTHING, so the run tests nothing: increase SECONDS"),
    ],
)
def test_report_of_failed_run_contains_reason(overrides: dict[str, Any], line: str) -> None:
    assert not build_run(**overrides).has_passed
    assert line in list(format_report(build_run(**overrides)))


def test_occasional_failed_action_does_not_fail_run() -> None:
    run = build_run(failures={"start": ["m-1: no", "m-2: no"]})

    assert run.has_passed
    assert "action failed: start m-2: no" in list(format_report(run))


@pytest.mark.parametrize("problems", [[], ["node-1 is cordoned"]], ids=["passed", "failed"])
def test_directory_of_failed_run_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], problems: list[str]
) -> None:
    folder = tmp_path / "run"
    (folder / "servers").mkdir(parents=True)

    report_run(build_run(problems=problems), folder)

    assert folder.exists() is (str(folder) in capsys.readouterr().err) is bool(problems)


def test_report_names_component_and_counts_evicted_pods() -> None:
    maintenance_report, mutex_report = (
        list(format_report(build_run())),
        list(format_report(build_run(component="mutex"))),
    )

    assert maintenance_report[0].startswith("maintenance on engine local")
    assert mutex_report[0].startswith("mutex on engine local")
    assert "pods evicted: 0, of these granted twice: 0" in maintenance_report
    assert not any(line.startswith("pods evicted") for line in mutex_report)


def test_report_lists_unexpected_exit_of_restarted_process() -> None:
    """Check that the report lists a product's process that exited unexpectedly, even if it was restarted.

    Injected kills are not in the process records. Other processes may exit while RabbitMQ is down.
    """
    crashed = ProcessRecord("functions", 1, "log", restarts=2, exit_reason="killed by SIGSEGV")
    other_records = [
        ProcessRecord("delivery", 2, "log"),
        ProcessRecord("ingress", 3, "log", restarts=9, exit_reason="exit status 1"),
    ]

    unexpected_exits = list_unexpected_exits([crashed, *other_records], {"functions", "delivery"})

    assert unexpected_exits == ["functions: killed by SIGSEGV, restarted 2 times"]
