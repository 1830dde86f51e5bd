"""The report states whether a run passed, and lists every problem."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chaos.__main__ import conclude
from chaos.invariant_checker import Tally
from chaos.report import Run, ended_by_themselves, lines
from localcluster.up.restarter import Record


def run(**more: Any) -> Run:
    tally = Tally(judged=Counter(evictions=3))
    usual: dict[str, Any] = {"done": {"start": 2}, "failed": {}, "tally": tally, "violations": [], "calm": 4.2}
    return Run("local", 7, 60, **{**usual, **more})


def test_a_good_run_says_what_was_done() -> None:
    said = "\n".join(lines(run()))

    assert run().is_good
    assert "seed 7, 60 s: good" in said
    assert "done: 2 start" in said
    assert "4.2 s after the last deed" in said


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"violations": ["p went", "p went"]}, "VIOLATION: p went (2 times)"),
        ({"calm": None, "left": ["node-1 is cordoned"]}, "LEFT: node-1 is cordoned"),
        ({"ended": ["delivery"]}, "ENDED BY ITSELF: delivery"),
        ({"failed": {"kill source": ["podsource: no"]}}, "not done: kill source podsource: no"),
        ({"failed": {"start": ["m-1: no"] * 3}}, "MOSTLY NOT DONE, so the run proves nothing of it: start"),
        ({"tally": Tally()}, "judged: NOTHING, so the run proves nothing: give it more SECONDS"),
    ],
)
def test_a_bad_run_says_why(more: dict[str, Any], line: str) -> None:
    assert not run(**more).is_good
    assert line in list(lines(run(**more)))


def test_a_deed_that_fails_now_and_then_spoils_no_run() -> None:
    found = run(failed={"start": ["m-1: no", "m-2: no"]})

    assert found.is_good
    assert "not done: start m-2: no" in list(lines(found))


@pytest.mark.parametrize("left", [[], ["node-1 is cordoned"]], ids=["good", "bad"])
def test_the_folder_of_a_bad_run_is_kept_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left: list[str]
) -> None:
    folder = tmp_path / "run"
    (folder / "servers").mkdir(parents=True)

    conclude(run(left=left), folder)

    assert folder.exists() is (str(folder) in capsys.readouterr().err) is bool(left)


def test_a_report_names_the_wing_and_counts_pods_where_pods_are_evicted() -> None:
    drained, upgraded = list(lines(run())), list(lines(run(wing="mutex")))

    assert drained[0].startswith("maintenance on engine local")
    assert upgraded[0].startswith("mutex on engine local")
    assert "pods evicted: 0, of these granted twice: 0" in drained
    assert not any(line.startswith("pods evicted") for line in upgraded)


def test_a_process_of_ours_that_ended_by_itself_is_named_though_it_runs_again() -> None:
    """Check that a product's process that exited unexpectedly is reported although it was restarted.

    Injected kills are not in the records. Other programs may exit while RabbitMQ is down.
    """
    crashed = Record("functions", 1, "log", restarts=2, ended="killed by SIGSEGV")
    others = [Record("delivery", 2, "log"), Record("ingress", 3, "log", restarts=9, ended="exit status 1")]

    found = ended_by_themselves([crashed, *others], {"functions", "delivery"})

    assert found == ["functions: killed by SIGSEGV, started again 2 times"]
