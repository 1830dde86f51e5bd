"""Generates docs/reference.md from the code: functions, event types, permissions, chart values and metrics.

`python -m tests.reference` prints the page.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.metrics_core import Metric

import eventing.podsource.metrics
import functions.admission.endpoints
import functions.app
import functions.certificates.metrics
import functions.installs
import functions.maintenance.metrics
import functions.record
import functions.serving.attempts
import functions.serving.handler
import functions.serving.https_server
from eventing import events
from eventing.events import shorten_type
from eventing.local.delivery import DeliveryMetrics
from functions.failures import raise_retry
from functions.steps import Function
from tests.chart_values import list_chart_values
from tests.manifests.documented_rights import SOURCE_BY_ACCOUNT, Right, read_documented_rights
from tests.sources import ROOT, get_source_path, parse_source

PAGE = ROOT / "docs" / "reference.md"
PAGE_HEAD = """\
# Reference: functions, event types, permissions, chart values and metrics

This page lists the event types and the permissions of each function, and all metrics.
It also lists the values of the Helm chart.
The page is for administrators who install or monitor the product, or review its permissions.
It is also for contributors who add a function.
`make reference` generates this page from the code.
Tests compare the code with the manifests and with the served metrics.

The tables omit the prefixes of the event types.
The prefix of `apiserver.*` and `sources.*` is `dev.knative.`.
The prefix of all other event types is `dev.nodemaintenance.`.
Other pages contain further references:

- [events](events.md): the order of the events, and their data
- [states](states.md): the states of all objects, and the event that ends each state
- [alerts, traces and logs](observability.md)
- [environment variables](configuration.md#environment-variables)
"""
FUNCTIONS_HEAD = """\
## Functions

The first column contains a link to the function's module.
The function `record` consumes every event.

| function | component | purpose | consumes | emits |
|---|---|---|---|---|"""
EVENTS_HEAD = """\
## Event types

PodSource watches pods and PodDisruptionBudgets during drains.
ApiServerSource and PingSource are event sources of Knative.

| event type | meaning | emitted by | consumed by |
|---|---|---|---|"""
PERMISSIONS_HEAD = """\
## Permissions

Each function has its own ServiceAccount with these permissions.
The component `deleting` grants `evict` one more permission, the
[right to delete pods](install.md#the-right-to-delete-pods).
A permission without a namespace applies to the whole cluster.
The manifest of each account is in `manifests/base/rbac`, or in its component's directory `rights`.
The manifest of the account of `validate` is in `manifests/components/admission`.
The manifest of the console's account is in `manifests/components/console`.
The [roles of users](access.md#choose-a-role) are in `manifests/base/users`.

| account | resource | API groups | verbs | namespace |
|---|---|---|---|---|"""
CHART_HEAD = """\
## Values of the Helm chart

[Install with Helm](helm.md) describes how to set these values.
The chart rejects unknown values, and combinations of values that the manifests do not support.

| value | default | meaning |
|---|---|---|"""
METRICS_HEAD = """\
## Metrics

Each process serves its metrics at `/metrics` in the Prometheus format.
The HELP text of a metric is its meaning in the following tables.
[Observability](observability.md#metrics) describes the ports, and how to query the metrics."""
METRICS_TABLE_HEAD = """\
| metric | type | labels | meaning |
|---|---|---|---|"""
COMPONENT_PAGES = {
    "maintenance": "architecture.md",
    "certificates": "certificates.md",
    "mutex": "mutex.md",
    "virtualization": "virtualization.md",
    "cpu_labels": "cpu-labels.md",
    "node_conditions": "node-conditions.md",
    "notifications": "notifications.md",
}
EXTERNAL_TYPES = {
    events.RESOURCE_ADDED: "an object was created; data: the object",
    events.RESOURCE_UPDATED: "an object was changed; data: the object",
    events.RESOURCE_DELETED: "an object was deleted; data: the object",
    events.REFERENCE_ADDED: "an object was created; data: a reference to it",
    events.REFERENCE_UPDATED: "an object was changed; data: a reference to it",
    events.REFERENCE_DELETED: "an object was deleted; data: a reference to it",
    events.TICK: "15 seconds have passed",
}
"""Map from event type of Knative's sources to its meaning."""
HINT_TYPES = (events.PODS_GONE, events.PODS_ADDED, events.BUDGET_OPENED)
"""The event types that PodSource emits."""
METRIC_SOURCES: dict[str, tuple[object, ...]] = {
    "functions": (
        functions.maintenance.metrics,
        functions.installs,
        functions.serving.handler,
        functions.serving.attempts,
        functions.record,
    ),
    "certificates": (functions.certificates.metrics,),
    "the local delivery": (DeliveryMetrics(),),
    "the admission webhook": (functions.admission.endpoints, functions.serving.https_server),
    "PodSource": (eventing.podsource.metrics,),
}
"""Map from end of the heading above a table to the modules and objects whose attributes define the table's metrics."""


def render_page() -> str:
    """Return the text of docs/reference.md."""
    lines = [PAGE_HEAD, FUNCTIONS_HEAD, *map(_render_function, functions.app.FUNCTIONS.values())]
    meanings = EXTERNAL_TYPES | events.TYPE_DESCRIPTIONS
    lines += ["", EVENTS_HEAD, *(_render_event_type(event_type, meaning) for event_type, meaning in meanings.items())]
    lines += ["", PERMISSIONS_HEAD]
    for account in SOURCE_BY_ACCOUNT:
        lines += _render_permissions(account)
    lines += ["", CHART_HEAD]
    lines += [f"| `{value.path}` | `{value.default}` | {value.description} |" for value in list_chart_values()]
    lines += ["", METRICS_HEAD]
    for server, sources in METRIC_SOURCES.items():
        lines += ["", f"### Metrics of {server}", "", METRICS_TABLE_HEAD]
        lines += [_render_metric(metric, labels) for source in sources for metric, labels in _list_metrics(source)]
    return "\n".join([*lines, ""])


def _render_function(function: Function) -> str:
    component, path = _get_component(function), get_source_path(function.name).relative_to(ROOT)
    component_link = f"[{component}]({COMPONENT_PAGES[component]})" if component in COMPONENT_PAGES else ""
    consumes = _render_types(function.consumes) + (f", of a {function.kind}" if function.kind else "")
    cells = [f"[`{function.name}`](../{path})", component_link, _get_purpose(function), consumes]
    return f"| {' | '.join([*cells, _render_types(_list_emitted_types(function))])} |"


def _get_component(function: Function) -> str:
    """Return the name of the function's component, such as `mutex`, or "record" for the function of all components."""
    return function.step.__module__.split(".")[1]


def _get_purpose(function: Function) -> str:
    """Return the first sentence of the module's docstring, without requirement ids."""
    docstring = ast.get_docstring(parse_source(get_source_path(function.name))) or ""
    return docstring.partition("\n")[0].partition(" (")[0].rstrip(".")


def _list_emitted_types(function: Function) -> list[str]:
    """Return the event types that the function emits, including the one that reports its failure."""
    reports_failures = _get_component(function) == "maintenance" and function.on_failure is not raise_retry
    return [*function.emits, *((events.MAINTENANCE_STEP_FAILED,) if reports_failures else ())]


def _render_event_type(event_type: str, meaning: str) -> str:
    emitters = [
        f"`{function.name}`"
        for function in functions.app.FUNCTIONS.values()
        if event_type in _list_emitted_types(function)
    ]
    if event_type in HINT_TYPES:
        emitters.append("PodSource")
    if event_type in EXTERNAL_TYPES:
        emitters.append("PingSource" if event_type == events.TICK else "ApiServerSource")
    consumers = [
        f"`{function.name}`" for function in functions.app.FUNCTIONS.values() if event_type in function.consumes
    ]
    return f"| `{shorten_type(event_type)}` | {meaning} | {', '.join(emitters)} | {', '.join(consumers)} |"


def _render_types(event_types: Iterable[str]) -> str:
    return ", ".join(f"`{shorten_type(event_type)}`" for event_type in event_types)


def _render_permissions(service_account: str) -> Iterator[str]:
    """Yield a row for each resource and namespace that the ServiceAccount may access."""
    rights: dict[tuple[str, str], list[Right]] = {}
    for right in sorted(read_documented_rights(service_account)):
        rights.setdefault((right.resource, right.namespace), []).append(right)
    for (resource, namespace), rights_of_resource in sorted(rights.items()):
        groups = sorted({f"`{right.group}`" if right.group else "core" for right in rights_of_resource})
        verbs = sorted({right.verb for right in rights_of_resource})
        cells = [f"`{service_account}`", f"`{resource}`", ", ".join(groups), ", ".join(verbs)]
        yield f"| {' | '.join([*cells, f'`{namespace}`' if namespace else ''])} |"


def _list_metrics(source: object) -> Iterator[tuple[Metric, tuple[str, ...]]]:
    """Yield the metrics that the source's attributes define, with their label names.

    The labels are an attribute of the collector, or of the metric if the collector has several metrics.
    """
    attributes: Iterable[Any] = vars(source).values()
    for collector in attributes:
        # The type is checked first, because Flask's `request` raises an error for every attribute outside of a request.
        if not hasattr(type(collector), "describe"):
            continue
        for metric in collector.describe():
            yield metric, getattr(metric, "_labelnames", ()) or getattr(collector, "_labelnames", ())


def _render_metric(metric: Metric, labels: Iterable[str]) -> str:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    label_list = ", ".join(f"`{label}`" for label in labels)
    return f"| {' | '.join([f'`{name}`', metric.type, label_list, metric.documentation])} |"


if __name__ == "__main__":
    sys.stdout.write(render_page())
