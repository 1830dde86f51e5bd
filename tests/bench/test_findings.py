"""Tests for the analysis of an idle period, and for the comparison of measured values with their limits."""

from __future__ import annotations

import pytest

from bench.api_requests import Request
from bench.findings import Finding, IdlePeriod, Tick


def build_request(
    received_at: float, operation: str, namespace: str = "", *, name: str = "", is_missing: bool = False
) -> Request:
    verb, resource = operation.split()
    return Request(received_at, "resync", verb, resource, namespace, name, is_missing)


def test_requests_during_tick_are_attributed_to_tick() -> None:
    ticks = [Tick(100.0, 0.5), Tick(115.0, 0.3)]
    requests = [
        *(build_request(100.2, "list pods"), build_request(100.3, "list pods"), build_request(100.1, "list nodes")),
        *(build_request(107.0, "get nodes"), build_request(115.1, "list nodes")),
    ]
    idle_period = IdlePeriod(ticks, requests, events=0, journal_rows=0, foreign_updates=0)

    figures = {metric: value for metric, value, _ in idle_period.build_figures()}

    assert figures["requests between ticks"] == 1
    assert figures["requests of a tick, median"] == 2
    assert figures["lists of pods in a tick, maximum"] == 2
    assert figures["seconds of a tick, median"] == 0.4
    assert figures["of these, get nodes"] == 1


def test_lease_renewals_and_watches_are_counted_separately() -> None:
    """Check that Lease renewals and watches are counted separately from the requests between ticks."""
    namespace = "medik8s-leases"
    requests = [
        *(
            build_request(7.0, "patch leases", namespace),
            build_request(8.0, "watch pods"),
            build_request(9.0, "get leases", "kube-node-lease"),
        ),
        build_request(100.1, "list leases", namespace),
    ]

    figures = {metric: value for metric, value, _ in IdlePeriod([Tick(100.0, 0.5)], requests, 0, 0, 0).build_figures()}

    assert figures["requests for node leases"] == 1
    assert figures["watches started or renewed"] == 1
    assert figures["requests between ticks"] == 1
    assert figures["requests of a tick, median"] == 1


def test_requests_for_unserved_kind_are_counted_separately() -> None:
    """Check that discovery requests for an unserved kind, for example after a failed watch, are counted separately.

    A request for a deleted object counts as a normal request.
    """
    requests = [
        build_request(7.0, "get /apis/kubevirt.io/v1alpha1", is_missing=True),
        build_request(8.0, "get /apis/kubevirt.io/v1alpha1"),
        build_request(9.0, "list nodemaintenances", is_missing=True),
        build_request(9.5, "get nodes", name="node-1", is_missing=True),
    ]

    figures = {metric: value for metric, value, _ in IdlePeriod([], requests, 0, 0, 0).build_figures()}

    assert figures["requests for a kind that is not served"] == 2
    assert figures["requests between ticks"] == 2


def test_tick_values_are_omitted_if_no_tick_occurred() -> None:
    assert not any("of a tick" in metric for metric, _, _ in IdlePeriod([], [], 0, 0, 0).build_figures())


@pytest.mark.parametrize(
    ("value", "limit", "expected_row", "expected_line"),
    [
        (2.0, None, ["2", ""], "e: c: w: 2"),
        (2.0, 2.0, ["2", "2"], "e: c: w: 2 (limit 2)"),
        (2.5, 0, ["**2.5**", "0"], "e: c: w: 2.5 (limit 0, exceeded)"),
    ],
)
def test_value_above_limit_is_bold(
    value: float, limit: float | None, expected_row: list[str], expected_line: str
) -> None:
    finding = Finding("e", "c", "w", value, limit)

    assert (finding.row, finding.line) == (["e", "c", "w", *expected_row], expected_line)
