"""Command line `python -m release.olm`, which `make bundle` calls: writes the bundle and the catalog entry for OLM."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from localcluster.deploy.preflight import PLACEHOLDER_IMAGE
from localcluster.errors import LocalClusterError
from release.errors import ReleaseError
from release.olm.bundle import BUNDLE_DIR, CATALOG_DIR, Images, build_files, render_objects
from release.versions import ROOT, read_version


@click.command()
@click.option("--image", default="", help="Repository of the product's image; default: the one in the manifests.")
@click.option(
    "--directory", type=click.Path(path_type=Path, file_okay=False), default=ROOT, help="Directory for the files."
)
def main(image: str, directory: Path) -> None:
    """Write the bundle, the catalog entry, and deploy/olm.yaml for the version in pyproject.toml."""
    try:
        write_files(directory, image or PLACEHOLDER_IMAGE)
    except (ReleaseError, LocalClusterError) as error:
        raise SystemExit(f"error: {error}") from None


def write_files(directory: Path, repository: str) -> None:
    """Write OLM's files into a directory, and remove an earlier bundle's files. Raises `ReleaseError`."""
    version = read_version()
    files = build_files(ROOT, render_objects(ROOT), version, Images.from_repository(repository, version))
    for folder in (BUNDLE_DIR, CATALOG_DIR):
        shutil.rmtree(directory / folder, ignore_errors=True)
    for name, content in files.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


if __name__ == "__main__":
    main()
