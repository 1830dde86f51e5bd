"""Renders the kustomize sources for combinations of the chart's values, as an administrator's overlay would."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from localcluster.access import NAMESPACE
from localcluster.chart.conditions import BOOLEANS, Axis, Combination
from localcluster.components.overlay import make_relative, select_components
from localcluster.components.selection import (
    ADMISSION,
    CERTIFICATES,
    CPU_LABELS,
    MUTEX,
    NODE_CONDITIONS,
    NOTIFICATIONS,
    VIRTUALIZATION,
)
from localcluster.kustomize import render_directory
from localcluster.servers import ROOT

MANIFESTS = ROOT / "manifests"
COMPONENTS_DIR = "components"
OVERLAYS = {"services": "knative", "compact": "compact", "deployments": "plain"}
"""For each way in which the functions run, the shipped overlay with these components in the required order."""
COMPONENTS = {
    ADMISSION: "components.admission",
    MUTEX: "components.mutex",
    VIRTUALIZATION: "components.virtualization",
    CPU_LABELS: "components.cpuLabels",
    NODE_CONDITIONS: "components.nodeConditions",
    NOTIFICATIONS: "components.notifications",
}
"""For each component that `select_components` places, the path of its value."""
COMPONENTS_WITH_SENDERS = (CERTIFICATES, MUTEX, VIRTUALIZATION, CPU_LABELS)
"""Components with sources of their own, which the component `senders` must admit."""
AXES = (
    Axis("functions", tuple(OVERLAYS)),
    Axis("delivery", ("inMemory", "rabbitmq", "kafka")),
    Axis("crds.enabled"),
    Axis("certificates", ("function", "certManager", "none")),
    *(Axis(path) for path in COMPONENTS.values()),
    Axis("components.deleting"),
    Axis("components.v1alpha1"),
    Axis("scaleToZero"),
    Axis("brokerAuthentication", ("none", "tokens", "senders")),
    Axis("journal.storage", ("pod", "volume", "postgresql")),
    Axis("console.enabled"),
    Axis("console.authentication", ("token", "proxy", "impersonation")),
    Axis("monitoring.enabled"),
)
"""The values that change which objects exist. Conditions name earlier axes rather than later ones."""
DEFAULTS: Combination = {
    **{axis.path: axis.options[0] for axis in AXES},
    "crds.enabled": "true",
    "components.admission": "true",
}
"""The defaults of values.yaml."""


def list_combinations() -> list[Combination]:
    """Return the combinations from which the templates are generated.

    For each way to run functions and each broker, these are the combination with all components, one combination for
    each other option of each axis, and the combination without components. Together, they show for each line on which
    values it depends, and whether it depends on two values at once.
    """
    brokers = next(axis.options for axis in AXES if axis.path == "delivery")
    return [
        combination
        for functions, delivery in itertools.product(OVERLAYS, brokers)
        for combination in _list_variations(functions, delivery)
    ]


def _list_variations(functions: str, delivery: str) -> Iterator[Combination]:
    full = build_full_combination(functions, delivery)
    yield full
    for axis in AXES:
        for option in axis.options:
            varied = {**full, axis.path: option}
            if axis.path not in ("functions", "delivery") and varied != full and is_supported(varied):
                yield varied
    yield {**DEFAULTS, "functions": functions, "delivery": delivery, "components.admission": "false"}


def build_full_combination(functions: str, delivery: str) -> Combination:
    """Return the combination with as many components as possible."""
    enabled = {axis.path: axis.options[-1] for axis in AXES if axis.options == BOOLEANS}
    return {
        **DEFAULTS,
        **enabled,
        "functions": functions,
        "delivery": delivery,
        "brokerAuthentication": "tokens" if delivery == "rabbitmq" else "senders",
        "journal.storage": "postgresql",
        "console.authentication": "impersonation",
        "scaleToZero": str(functions == "services").lower(),
    }


def is_supported(combination: Combination) -> bool:
    """Return whether the kustomize sources can be rendered with these values; the chart reports the same conflicts."""
    return not (
        (combination["scaleToZero"] == "true" and combination["functions"] != "services")
        or (combination["journal.storage"] == "volume" and combination["functions"] == "compact")
        or (combination["brokerAuthentication"] == "senders" and combination["delivery"] == "rabbitmq")
    )


def list_overlay_parts(combination: Combination) -> tuple[str, ...]:
    """Return the directories in manifests that an overlay with these values names, in the required order."""
    overlay = MANIFESTS / "overlays" / OVERLAYS[combination["functions"]] / "kustomization.yaml"
    selected = [component for component, path in COMPONENTS.items() if combination[path] == "true"]
    if combination["certificates"] == "function":
        selected.append(CERTIFICATES)
    paths = select_components(yaml.safe_load(overlay.read_text())["components"], selected)
    names = [path.partition("/components/")[2] for path in paths]
    broker = combination["delivery"].lower()
    components = [*(broker if name == "inmemory" else name for name in names), *_list_additions(combination, selected)]
    v1alpha1 = ["v1alpha1"] if combination["components.v1alpha1"] == "true" else []
    return ("base", *v1alpha1, *(f"{COMPONENTS_DIR}/{name}" for name in components))


def _list_additions(combination: Combination, selected: list[str]) -> Iterator[str]:
    """Yield the components that follow those of the shipped overlays."""
    if combination["certificates"] == "certManager":
        yield "cert-manager"
    if combination["scaleToZero"] == "true":
        yield "scale-to-zero"
    if combination["brokerAuthentication"] != "none":
        yield combination["brokerAuthentication"]
    if combination["brokerAuthentication"] == "senders":
        yield from (f"{component}/senders" for component in COMPONENTS_WITH_SENDERS if component in selected)
    if combination["journal.storage"] != "pod":
        yield {"volume": "journal"}.get(combination["journal.storage"], combination["journal.storage"])
    if combination["console.enabled"] == "true":
        yield "console"
        if combination["console.authentication"] != "token":
            yield "proxied"
        if combination["console.authentication"] == "impersonation":
            yield "impersonating"
    if combination["monitoring.enabled"] == "true":
        yield "monitoring"
    if combination["components.deleting"] == "true":
        yield "deleting"


def write_overlay(parts: Sequence[str], directory: Path) -> Path:
    """Write an overlay of these directories in manifests into a new directory; return the new directory."""
    directory.mkdir(parents=True)
    paths = {part: make_relative(directory, MANIFESTS / part) for part in parts}
    kustomization = {
        "resources": [path for part, path in paths.items() if not part.startswith(COMPONENTS_DIR)],
        "components": [path for part, path in paths.items() if part.startswith(COMPONENTS_DIR)],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return directory


def render_documents(directory: Path) -> list[str]:
    """Render an overlay, and return its YAML documents. Raises `CalledProcessError` if kustomize rejects it."""
    return render_directory(directory).removesuffix("\n").split("\n---\n")


def is_in_chart(combination: Combination, kind: str, name: str) -> bool:
    """Return whether the chart contains this object of the overlay.

    The administrator creates the release's namespace, in which Helm stores the release before it creates any object.
    """
    if kind == "CustomResourceDefinition":
        return combination["crds.enabled"] == "true"
    return (kind, name) != ("Namespace", NAMESPACE)
