"""Determines the distributions that the wheel requires, and their pinned versions in the lock file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from email.message import Message
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from localcluster.servers import ROOT

LOCK_FILE = "requirements-dev.lock"


def read_wheel_metadata(wheel: Path) -> Message:
    """Return the wheel's metadata."""
    with ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def list_requirements(metadata: Message, extra: str = "") -> list[Requirement]:
    """Return the wheel's requirements without extras, or only those that `extra` adds."""
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    if not extra:
        return [line for line in requirements if applies(line, {})]
    return [line for line in requirements if applies(line, {"extra": extra}) and not applies(line, {})]


def applies(requirement: Requirement, environment: Mapping[str, str]) -> bool:
    """Return whether the requirement's marker is true for this Python, with the values in `environment` replaced."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": "", **environment})


def find_distributions(requirements: Iterable[Requirement], environment: Mapping[str, str] | None = None) -> set[str]:
    """Return the names of the required distributions and of their transitive dependencies.

    If a marker excludes a distribution on this machine, it is not installed. The function then assumes that the
    distribution has no dependencies.
    """
    found: set[str] = set()
    pending = list(requirements)
    while pending:
        name = canonicalize_name(pending.pop().name)
        if name in found:
            continue
        found.add(name)
        try:
            lines = map(Requirement, distribution(name).requires or ())
        except PackageNotFoundError:
            continue
        pending += [line for line in lines if applies(line, environment or {})]
    return found


def select_pins(names: Iterable[str], environment: Mapping[str, str]) -> list[str]:
    """Return the lock file's lines for these distributions, with hashes and without markers."""
    wanted = set(names)
    pins = []
    for line in (ROOT / LOCK_FILE).read_text().replace("\\\n", "").splitlines():
        pin, _, hashes = line.partition(" --hash=")
        requirement = Requirement(pin)
        if canonicalize_name(requirement.name) in wanted and applies(requirement, environment):
            pins.append(f"{requirement.name}{requirement.specifier} --hash={hashes}")
    return pins
