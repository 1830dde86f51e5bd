"""The page about certificates: each with its state, its lifetime and its next renewal, grouped by component."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from itertools import groupby
from typing import Any, NamedTuple

from flask import render_template

from console.operations.certificates import CertificateState, compute_state, is_authority, list_certificates
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
"""CSS class for the state of a certificate."""
COMPONENT_LABELS = {"kubevirt": "KubeVirt", "cdi": "CDI", "macpool": "KubeMacPool", "ours": "Node maintenance"}
"""Names of the components, as users read them."""


class CertificateRow(NamedTuple):
    """One certificate on the page.

    Attributes:
        entry: The certificate, as `list_certificates` returns it.
        elapsed, renewal: Percentages of the lifetime that have passed, and after which it is renewed; None if unknown.
    """

    entry: Object
    state: CertificateState
    is_authority: bool
    elapsed: float | None
    renewal: float | None


class CertificateViews:
    """The view about certificates; `console.web.app` maps a URL to it."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context

    def certificates(self) -> str:
        """Render all certificates that the caller may list."""
        api, user = self._context.get_api_and_user_name(LIST_CERTIFICATES)
        rows = build_rows(self._context.client.run(list_certificates(api)), datetime.now(timezone.utc))
        return render_template(
            "certificates.html",
            **{"user": user, "groups": group_by_component(rows), "count": len(rows)},
            **{"tones": STATE_TONES, "labels": COMPONENT_LABELS},
        )


def build_rows(entries: Iterable[Mapping[str, Any]], now: datetime) -> list[CertificateRow]:
    """Build the rows of the certificates that `list_certificates` returns, in the same order."""
    return [_build_row(dict(entry), now) for entry in entries]


def _build_row(entry: Object, now: datetime) -> CertificateRow:
    begins, ends, renewal = (parse_time_or_none(entry[field]) for field in ("begins", "ends", "renewal"))
    state = compute_state(entry, now)
    if begins is None or ends is None or ends <= begins:
        return CertificateRow(entry, state, is_authority(entry), None, None)

    def compute_percentage(time: datetime) -> float:
        return round(min(100.0, max(0.0, (time - begins) / (ends - begins) * 100)), 1)

    renewal_percentage = compute_percentage(renewal) if renewal else None
    return CertificateRow(entry, state, is_authority(entry), compute_percentage(now), renewal_percentage)


def group_by_component(rows: Iterable[CertificateRow]) -> list[tuple[str, list[CertificateRow]]]:
    """Return each component with its rows: first its CA, then its servers. The rows are sorted by component."""
    groups = groupby(rows, lambda row: str(row.entry["component"]))
    return [(component, sorted(members, key=lambda row: not row.is_authority)) for component, members in groups]
