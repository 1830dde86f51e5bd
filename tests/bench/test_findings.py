"""The analysis of an idle period, and the comparison of figures with their limits."""

from __future__ import annotations

import pytest

from bench.api_requests import Request
from bench.findings import Finding, Quiet, Tick


def asked(at: float, what: str, namespace: str = "", *, name: str = "", is_missing: bool = False) -> Request:
    verb, resource = what.split()
    return Request(at, "resync", verb, resource, namespace, name, is_missing)


def test_requests_of_a_tick_are_told_from_those_between_ticks() -> None:
    ticks = [Tick(100.0, 0.5), Tick(115.0, 0.3)]
    requests = [
        *(asked(100.2, "list pods"), asked(100.3, "list pods"), asked(100.1, "list nodes")),
        *(asked(107.0, "get nodes"), asked(115.1, "list nodes")),
    ]
    quiet = Quiet(ticks, requests, events=0, rows=0, updates=0)

    figures = {what: value for what, value, _ in quiet.figures()}

    assert figures["requests between ticks"] == 1
    assert figures["requests of a tick, median"] == 2
    assert figures["lists of pods in a tick, the most"] == 2
    assert figures["seconds of a tick, median"] == 0.4
    assert figures["of these, get nodes"] == 1


def test_renewals_and_watches_are_told_apart() -> None:
    """Check that Lease renewals and watches are counted separately from the requests between ticks."""
    ours = "medik8s-leases"
    requests = [
        *(asked(7.0, "patch leases", ours), asked(8.0, "watch pods"), asked(9.0, "get leases", "kube-node-lease")),
        asked(100.1, "list leases", ours),
    ]

    figures = {what: value for what, value, _ in Quiet([Tick(100.0, 0.5)], requests, 0, 0, 0).figures()}

    assert figures["requests for leases, meanwhile"] == 1
    assert figures["watches begun or renewed, meanwhile"] == 1
    assert figures["requests between ticks"] == 1
    assert figures["requests of a tick, median"] == 1


def test_looks_for_a_kind_that_is_not_served_are_told_apart() -> None:
    """Check that discovery requests for an unserved kind are counted separately, such as those of a failed watch.

    A request for a deleted object counts as a normal request.
    """
    requests = [
        asked(7.0, "get /apis/kubevirt.io/v1alpha1", is_missing=True),
        asked(8.0, "get /apis/kubevirt.io/v1alpha1"),
        asked(9.0, "list nodemaintenances", is_missing=True),
        asked(9.5, "get nodes", name="node-1", is_missing=True),
    ]

    figures = {what: value for what, value, _ in Quiet([], requests, 0, 0, 0).figures()}

    assert figures["looks for a kind that is not served, meanwhile"] == 2
    assert figures["requests between ticks"] == 2


def test_without_a_tick_there_is_none_to_tell_of() -> None:
    assert not any("of a tick" in what for what, _, _ in Quiet([], [], 0, 0, 0).figures())


@pytest.mark.parametrize(
    ("value", "limit", "row", "line"),
    [
        (2.0, None, ["2", ""], "e: c: w: 2"),
        (2.0, 2.0, ["2", "2"], "e: c: w: 2 (at most 2)"),
        (2.5, 0, ["**2.5**", "0"], "e: c: w: 2.5 (at most 0: does not hold)"),
    ],
)
def test_a_figure_above_its_limit_stands_out(value: float, limit: float | None, row: list[str], line: str) -> None:
    found = Finding("e", "c", "w", value, limit)

    assert (found.row, found.line) == (["e", "c", "w", *row], line)
