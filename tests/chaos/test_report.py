"""The report says whether a run was good, and all that was not."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.judge import Tally
from chaos.report import Run, lines


def run(**more: Any) -> Run:
    usual: dict[str, Any] = {"done": {"start": 2}, "failed": [], "tally": Tally(), "violations": [], "calm": 4.2}
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
    ],
)
def test_a_bad_run_says_why(more: dict[str, Any], line: str) -> None:
    assert not run(**more).is_good
    assert line in list(lines(run(**more)))


def test_a_report_names_the_wing_and_counts_pods_where_pods_are_evicted() -> None:
    drained, upgraded = list(lines(run())), list(lines(run(wing="mutex")))

    assert drained[0].startswith("maintenance on engine local")
    assert upgraded[0].startswith("mutex on engine local")
    assert "pods evicted: 0, of these granted twice: 0" in drained
    assert not any(line.startswith("pods evicted") for line in upgraded)
