"""The page about CPU labels: the nodes with their labels, and the settings that determine the labels."""

from __future__ import annotations

from flask import render_template

from console.operations.cpu_label_report import LabelState, read_cpu_labels
from console.web.callers import READ_CPU_LABELS
from console.web.context import ConsoleContext
from kube.cpu_labels.capabilities import CAPABILITIES_LABEL
from kube.cpu_labels.hyperconverged import ALWAYS_OBSOLETE_MODELS
from kube.paths import DEFAULT_NAMESPACE

STATE_TONES = {
    LabelState.CURRENT: "ok",
    LabelState.PENDING: "busy",
    LabelState.UNDETERMINED: "off",
    LabelState.SKIPPED: "off",
    LabelState.MISSING: "bad",
    LabelState.FOREIGN: "done",
}
"""Map from the state of a node's CPU labels to its CSS class."""


class CpuLabelViews:
    """The view of the page about CPU labels; `console.web.app` maps a URL to it."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context

    def cpu_labels(self) -> str:
        """Render the page with the CPU labels of all nodes. Raises `Denied` if the caller lacks a read permission."""
        api, user = self._context.get_api_and_user_name(READ_CPU_LABELS)
        report = self._context.client.run(read_cpu_labels(api, DEFAULT_NAMESPACE))
        return render_template(
            "cpu_labels.html",
            **{"user": user, "report": report, "tones": STATE_TONES, "namespace": DEFAULT_NAMESPACE},
            **{"always_obsolete": ALWAYS_OBSOLETE_MODELS, "capabilities_label": CAPABILITIES_LABEL},
        )
