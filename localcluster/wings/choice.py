"""What WINGS and ACTORS can be: the wings that are known, what each needs, and who plays what it stands on. Pure."""

from __future__ import annotations

from collections.abc import Collection

from localcluster.trouble import LocalClusterError

MAINTENANCE, ADMISSION, CERTIFICATES = "maintenance", "admission", "certificates"
MUTEX, VIRTUALIZATION, CPU_LABELS = "mutex", "virtualization", "cpu-labels"
KNOWN = (MAINTENANCE, ADMISSION, CERTIFICATES, MUTEX, VIRTUALIZATION, CPU_LABELS)
FOREIGN = {MUTEX: "OpenShift", VIRTUALIZATION: "KubeVirt", CPU_LABELS: "HyperConverged"}
"""Wing → whose CustomResourceDefinitions it needs."""
PLAYED = {wing: FOREIGN[wing] for wing in (MUTEX, VIRTUALIZATION)}
"""Wing → whom the actors play."""
OFF, ON, BESIDE = "off", "on", "kubevirt"
ACTORS = (OFF, ON, BESIDE)
"""Nobody is played; all of `PLAYED`; or of KubeVirt no more than what it has on each node, beside itself."""
DEFAULT = tuple(wing for wing in KNOWN if wing not in FOREIGN)
Wings = Collection[str]


def chosen(text: str) -> tuple[str, ...]:
    """Give the wings that a text names with commas, in the order of `KNOWN`.

    Raises `LocalClusterError` for a name that is not known, and where a wing is missing that another one needs.
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
    """Raise `LocalClusterError` where no wing stands on anything that these actors could play."""
    missing = f"which WINGS={','.join(wings)} leaves out: add it to WINGS"
    if actors == BESIDE and VIRTUALIZATION not in wings:
        raise LocalClusterError(f"ACTORS={BESIDE} runs KubeVirt itself, for {VIRTUALIZATION}, {missing}")
    if actors == ON and not set(wings) & set(PLAYED):
        whose = " or ".join(f"{project}, for {wing}" for wing, project in PLAYED.items())
        raise LocalClusterError(f"ACTORS={ON} plays {whose}, {missing}")
