"""The page with all certificates, grouped by component, each with its state, lifetime and next renewal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from itertools import groupby
from typing import Any, NamedTuple

from flask import render_template

from console.operations.certificates import (
    CertificateState,
    compute_certificate_state,
    is_ca_certificate,
    list_certificates,
)
from console.web.callers import LIST_CERTIFICATES
from console.web.context import ConsoleContext
from kube.paths import Object
from kube.times import parse_time_or_none

STATE_TONES = {
    CertificateState.VALID: "ok",
    CertificateState.RENEWAL_DUE: "busy",
    CertificateState.OVERDUE: "bad",
    CertificateState.EXPIRED: "bad",
    CertificateState.NOT_ISSUED: "off",
}
"""Map from a certificate's state to its CSS class."""
COMPONENT_LABELS = {"kubevirt": "KubeVirt", "cdi": "CDI", "macpool": "KubeMacPool", "ours": "Node maintenance"}
"""Map from a component's name to the name that the page shows."""


class CertificateRow(NamedTuple):
    """A certificate's row on the page.

    Attributes:
        entry: The certificate, as returned by `list_certificates`.
        elapsed, renewal: Elapsed part of the certificate's lifetime, and the part after which it is renewed, in
            percent; None if unknown.
    """

    entry: Object
    state: CertificateState
    is_ca_certificate: bool
    elapsed: float | None
    renewal: float | None


class CertificateViews:
    """The view of the page about certificates; `console.web.app` maps a URL to it."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context

    def certificates(self) -> str:
        """Render the page with all certificates. Raises `Denied` if the caller may not list ConfigMaps."""
        api, user = self._context.get_api_and_user_name(LIST_CERTIFICATES)
        rows = build_rows(self._context.client.run(list_certificates(api)), datetime.now(timezone.utc))
        return render_template(
            "certificates.html",
            **{"user": user, "groups": group_by_component(rows), "count": len(rows)},
            **{"tones": STATE_TONES, "labels": COMPONENT_LABELS},
        )


def build_rows(entries: Iterable[Mapping[str, Any]], now: datetime) -> list[CertificateRow]:
    """Build a row for each entry of `list_certificates`, in the same order."""
    return [_build_row(dict(entry), now) for entry in entries]


def _build_row(entry: Object, now: datetime) -> CertificateRow:
    begins, ends, renewal = (parse_time_or_none(entry[field]) for field in ("begins", "ends", "renewal"))
    state = compute_certificate_state(entry, now)
    if begins is None or ends is None or ends <= begins:
        return CertificateRow(entry, state, is_ca_certificate(entry), None, None)

    def compute_percentage(time: datetime) -> float:
        return round(min(100.0, max(0.0, (time - begins) / (ends - begins) * 100)), 1)

    renewal_percentage = compute_percentage(renewal) if renewal else None
    return CertificateRow(entry, state, is_ca_certificate(entry), compute_percentage(now), renewal_percentage)


def group_by_component(rows: Iterable[CertificateRow]) -> list[tuple[str, list[CertificateRow]]]:
    """Group rows, which must be sorted by component; within a component, put the CA before the server certificates."""
    groups = groupby(rows, lambda row: str(row.entry["component"]))
    return [(component, sorted(members, key=lambda row: not row.is_ca_certificate)) for component, members in groups]
