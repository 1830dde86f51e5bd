"""Parses and validates the Makefile's `COMPONENTS` and `SIMULATORS`. All functions are pure."""

from __future__ import annotations

from collections.abc import Collection

from localcluster.errors import LocalClusterError

MAINTENANCE, ADMISSION, CERTIFICATES = "maintenance", "admission", "certificates"
MUTEX, VIRTUALIZATION, CPU_LABELS = "mutex", "virtualization", "cpu-labels"
NODE_CONDITIONS, NOTIFICATIONS = "node-conditions", "notifications"
DEFAULT_COMPONENTS = (MAINTENANCE, ADMISSION, CERTIFICATES)
OPT_IN_COMPONENTS = (MUTEX, VIRTUALIZATION, CPU_LABELS, NODE_CONDITIONS, NOTIFICATIONS)
"""The components that the default overlays do not include."""
ALL_COMPONENTS = (*DEFAULT_COMPONENTS, *OPT_IN_COMPONENTS)
CRD_PROJECTS = {MUTEX: "OpenShift", VIRTUALIZATION: "KubeVirt", CPU_LABELS: "HyperConverged"}
"""For each component with event sources of its own, the project whose CustomResourceDefinitions it needs."""
FAKED_PROJECTS = {component: CRD_PROJECTS[component] for component in (MUTEX, VIRTUALIZATION)}
"""The project that the fakes imitate for each component."""
FAKES_OFF, FAKES_ON, KUBEVIRT_ITSELF = "off", "on", "kubevirt"
FAKE_MODES = (FAKES_OFF, FAKES_ON, KUBEVIRT_ITSELF)
"""No fakes; fakes of all projects in `FAKED_PROJECTS`; or KubeVirt's own control plane with fakes of its nodes."""
Components = Collection[str]


def parse_components(text: str) -> tuple[str, ...]:
    """Return the components in a comma-separated list, in the order of `ALL_COMPONENTS`.

    Raises `LocalClusterError` for an unknown name, or if a required component is missing.
    """
    selected = {name.strip() for name in text.split(",")} - {""}
    if unknown := sorted(selected - set(ALL_COMPONENTS)):
        raise LocalClusterError(
            f"COMPONENTS={text}: unsupported values {', '.join(unknown)}: use any of {', '.join(ALL_COMPONENTS)}"
        )
    if MAINTENANCE not in selected:
        raise LocalClusterError(f"COMPONENTS={text}: component {MAINTENANCE} is required: add it")
    if ADMISSION in selected and CERTIFICATES not in selected:
        raise LocalClusterError(
            f"COMPONENTS={text}: component {ADMISSION} requires {CERTIFICATES}, which issues its serving certificate: "
            f"add {CERTIFICATES}, or remove {ADMISSION}"
        )
    return tuple(component for component in ALL_COMPONENTS if component in selected)


def check_fakes(components: Components, fakes: str) -> None:
    """Raise `LocalClusterError` if no component needs the projects that these fakes imitate."""
    missing = f"which COMPONENTS={','.join(components)} does not contain: add it to COMPONENTS"
    if fakes == KUBEVIRT_ITSELF and VIRTUALIZATION not in components:
        raise LocalClusterError(f"SIMULATORS={KUBEVIRT_ITSELF} requires the component {VIRTUALIZATION}, {missing}")
    if fakes == FAKES_ON and not set(components) & set(FAKED_PROJECTS):
        components_with_fakes = " or ".join(FAKED_PROJECTS)
        raise LocalClusterError(f"SIMULATORS={FAKES_ON} requires the component {components_with_fakes}, {missing}")
