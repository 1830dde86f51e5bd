"""What counts as a cost, and how much."""

from __future__ import annotations

import os
import subprocess
import sys

from bench.costs import Costs, cpu_seconds, peak_mebibytes, requests, tree

METRICS = """# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="pods",subresource="",verb="LIST"} 3
apiserver_request_total{code="404",resource="pods",subresource="",verb="LIST"} 2
apiserver_request_total{code="201",resource="pods",subresource="eviction",verb="POST"} 7
apiserver_request_total{code="200",resource="pods",subresource="",verb="WATCH"} 9
"""
PARENT = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()']); "
    "print(child.pid, flush=True); child.wait()"
)


def test_requests_are_told_apart_by_verb_and_resource_and_watches_are_left_out() -> None:
    assert requests(METRICS) == {"LIST pods": 5, "POST pods/eviction": 7}


def test_costs_are_what_came_in_between() -> None:
    before = Costs({"a": 1}, {"LIST pods": 5}, {"functions": 1.5}, {"functions": 90.0})
    after = Costs({"a": 1, "b": 2}, {"LIST pods": 9}, {"functions": 1.75}, {"functions": 95.0})

    assert after.since(before) == Costs({"b": 2}, {"LIST pods": 4}, {"functions": 0.25}, {"functions": 95.0})


def test_a_process_counts_with_its_children() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        assert list(tree(parent.pid)) == [parent.pid, child]
        parent.communicate("\n")

    assert cpu_seconds(os.getpid()) > 0
    assert peak_mebibytes(os.getpid()) > 1


def test_a_process_that_has_ended_costs_nothing_more() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()

    assert (cpu_seconds(ended.pid), peak_mebibytes(ended.pid)) == (0.0, 0.0)
