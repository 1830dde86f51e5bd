"""The values of `WINGS` and `ACTORS`: the components, what each needs, and fakes of other projects. Pure functions."""

from __future__ import annotations

from collections.abc import Collection

from localcluster.errors import LocalClusterError

MAINTENANCE, ADMISSION, CERTIFICATES = "maintenance", "admission", "certificates"
MUTEX, VIRTUALIZATION, CPU_LABELS = "mutex", "virtualization", "cpu-labels"
KNOWN = (MAINTENANCE, ADMISSION, CERTIFICATES, MUTEX, VIRTUALIZATION, CPU_LABELS)
FOREIGN = {MUTEX: "OpenShift", VIRTUALIZATION: "KubeVirt", CPU_LABELS: "HyperConverged"}
"""For each component, the project whose CustomResourceDefinitions it needs."""
PLAYED = {wing: FOREIGN[wing] for wing in (MUTEX, VIRTUALIZATION)}
"""For each component, the project that the fakes imitate."""
OFF, ON, BESIDE = "off", "on", "kubevirt"
ACTORS = (OFF, ON, BESIDE)
"""No fakes; fakes of all projects in `PLAYED`; or KubeVirt's own control plane, with fakes on the nodes only."""
DEFAULT = tuple(wing for wing in KNOWN if wing not in FOREIGN)
Wings = Collection[str]


def chosen(text: str) -> tuple[str, ...]:
    """Return the components in a comma-separated text, in the order of `KNOWN`.

    Raises `LocalClusterError` for an unknown name, or if a component that another one needs is missing.
    """
    named = {word.strip() for word in text.split(",")} - {""}
    if unknown := sorted(named - set(KNOWN)):
        raise LocalClusterError(f"WINGS={text}: {', '.join(unknown)} is not known; allowed: {', '.join(KNOWN)}")
    if MAINTENANCE not in named:
        raise LocalClusterError(f"WINGS={text} leaves out {MAINTENANCE}, on which all others stand: add it")
    if ADMISSION in named and CERTIFICATES not in named:
        raise LocalClusterError(
            f"WINGS={text}: {ADMISSION} needs {CERTIFICATES}, which issues and renews its certificate: "
            f"add it, or leave out {ADMISSION}"
        )
    return tuple(wing for wing in KNOWN if wing in named)


def check_actors(wings: Wings, actors: str) -> None:
    """Raise `LocalClusterError` if no component needs the projects that these fakes imitate."""
    missing = f"which WINGS={','.join(wings)} leaves out: add it to WINGS"
    if actors == BESIDE and VIRTUALIZATION not in wings:
        raise LocalClusterError(f"ACTORS={BESIDE} runs KubeVirt itself, for {VIRTUALIZATION}, {missing}")
    if actors == ON and not set(wings) & set(PLAYED):
        whose = " or ".join(f"{project}, for {wing}" for wing, project in PLAYED.items())
        raise LocalClusterError(f"ACTORS={ON} plays {whose}, {missing}")
