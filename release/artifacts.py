"""Builds a release's files from a checkout: the image's SBOM, the charts, the wheel, OLM's files, and checksums."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from release.errors import ReleaseError
from release.olm.bundle import BUNDLE_DIR, CATALOG_DIR, REMAINING_FILE
from release.olm.service_version import PACKAGE

SBOM_FILE, BUILT_SBOM_FILE = "sbom.cdx.json", "build/sbom.json"
"""The image's SBOM in CycloneDX format: its file in the release, and the file that `make image` writes."""
NOTES_FILE, CHECKSUMS_FILE = "RELEASE_NOTES.md", "SHA256SUMS"
PLUGIN_MODULE = "localcluster.plugin"
"""The module that builds `kubectl maintenance` for users' machines."""


@dataclass(frozen=True)
class Options:
    """The options of a release.

    Attributes:
        image: The repository of the image; if empty, the name in the manifests.
        url: The URL from which users will download the files; krew's manifest needs it.
        has_image: Whether to build the image.
    """

    image: str = ""
    url: str = ""
    has_image: bool = True


def build_artifacts(checkout: Path, directory: Path, version: str, notes: str, options: Options) -> None:
    """Build all files of a release into an empty directory. Raises `ReleaseError` if a file cannot be built.

    Args:
        checkout: A checkout of the released version.
        directory: The directory for the files.
        version: The released version.
        notes: The version's section of the changelog.
        options: The options of the release.
    """
    if options.has_image:
        _build_image(checkout, directory, version, options.image)
    for chart in sorted(checkout.glob("charts/*/Chart.yaml")):
        _pack_chart(chart.parent, directory)
    if checkout.joinpath(*PLUGIN_MODULE.split(".")).is_dir():
        run_python(checkout, PLUGIN_MODULE, str(directory), *([options.url] if options.url else []))
    _build_olm_files(checkout, directory, version, options.image)
    (directory / NOTES_FILE).write_text(f"# {version}\n\n{notes}\n")
    _write_checksums(directory)


def run_python(checkout: Path, module: str, *arguments: str) -> None:
    """Run a module of the checkout. Raises `ReleaseError` if it fails; the module's own output explains the failure."""
    _run_command(checkout, [sys.executable, "-m", module, *arguments], f"python -m {module}")


def _run_command(checkout: Path, command: list[str], title: str) -> None:
    done = subprocess.run(command, cwd=checkout, check=False)
    if done.returncode:
        raise ReleaseError(f"{title} failed, see its error above: correct it, then run make release again")


def _build_image(checkout: Path, directory: Path, version: str, image: str) -> None:
    """Build the image into the container engine's storage, and copy its SBOM."""
    variables = [f"VERSION={version}", *([f"IMAGE={image}"] if image else [])]
    _run_command(checkout, ["make", "--no-print-directory", "image", *variables], "make image")
    shutil.copy(checkout / BUILT_SBOM_FILE, directory / SBOM_FILE)


def _pack_chart(chart: Path, directory: Path) -> None:
    """Pack a Helm chart as `helm package` does, into a directory with the chart's name."""
    metadata = yaml.safe_load((chart / "Chart.yaml").read_text())
    name = metadata["name"]
    files = {f"{name}/{file.relative_to(chart)}": file for file in _list_files(chart)}
    pack(directory / f"{name}-{metadata['version']}.tgz", files)


def _build_olm_files(checkout: Path, directory: Path, version: str, image: str) -> None:
    """Generate OLM's files; pack the bundle and the catalog, and copy the manifest of what OLM cannot install."""
    run_python(checkout, "release.olm", *(["--image", image] if image else []))
    files = [file for folder in (BUNDLE_DIR, CATALOG_DIR) for file in _list_files(checkout / folder)]
    files.append(checkout / "bundle.Dockerfile")
    pack(
        directory / f"{PACKAGE}-olm-{version}.tar.gz",
        {file.relative_to(checkout).as_posix(): file for file in files},
    )
    shutil.copy(checkout / REMAINING_FILE, directory)


def _list_files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.rglob("*") if file.is_file())


def pack(archive: Path, files: dict[str, Path]) -> None:
    """Pack files under these names, without times and owners, so that equal files produce equal archives."""
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as packed,
    ):
        for name, file in sorted(files.items()):
            member = packed.gettarinfo(file, name)
            member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
            member.mode = 0o755 if member.mode & 0o100 else 0o644
            with file.open("rb") as content:
                packed.addfile(member, content)


def _write_checksums(directory: Path) -> None:
    """Write the SHA-256 digests of all files in the format of `sha256sum --check`."""
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in _list_files(directory)]
    (directory / CHECKSUMS_FILE).write_text("".join(lines))
