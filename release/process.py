"""Releases a version: checks the work tree, commits the version, builds the files and creates the tag.

A release is prepared in a temporary checkout, so that a failure changes nothing. The process contacts no other
repository: the maintainer pushes the branch and the tag.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from release import changelog
from release.artifacts import Options, build_artifacts, run_python
from release.errors import ReleaseError
from release.repository import add_checkout, check_clean, check_no_tag, commit_all, create_tag, fast_forward, run_git
from release.versions import check_version, read_version, write_version

OUTPUT_DIR = Path("build") / "release"


def release(root: Path, version: str, options: Options) -> Path:
    """Release a version from the current commit, and return the directory of the release's files.

    The function adds one commit, which sets the version, to the current branch, and tags it. Raises `ReleaseError`,
    without any change, if the version cannot be released or a file cannot be built.
    """
    tag, notes = _check_release(root, version)
    check_no_tag(root, tag)
    with add_checkout(root) as checkout:
        _write_version(checkout, version)
        commit_all(checkout, f"Release {version}")
        with _replace_directory(root / OUTPUT_DIR / version) as directory:
            build_artifacts(checkout, directory, version, notes, options)
        create_tag(checkout, tag, f"Release {version}\n\n{notes}\n")
        try:
            fast_forward(root, tag)
        except ReleaseError:
            run_git(root, "tag", "--delete", tag)
            raise
    return root / OUTPUT_DIR / version


def build_files(root: Path, version: str, options: Options) -> Path:
    """Build a release's files from the current commit, which must have this version; return the files' directory.

    Raises `ReleaseError` if the work tree has changes, if its version differs, or if a file cannot be built.
    """
    _, notes = _check_release(root, version)
    current = read_version(root)
    if current != version:
        raise ReleaseError(f"this commit has version {current}, not {version}: check out the tag v{version}")
    with add_checkout(root) as checkout, _replace_directory(root / OUTPUT_DIR / version) as directory:
        build_artifacts(checkout, directory, version, notes, options)
    return root / OUTPUT_DIR / version


def _check_release(root: Path, version: str) -> tuple[str, str]:
    """Return a version's tag and release notes. Raises `ReleaseError` if the version cannot be released."""
    check_version(version)
    check_clean(root)
    return f"v{version}", changelog.read_section((root / changelog.FILE_NAME).read_text(), version)


def _write_version(checkout: Path, version: str) -> None:
    """Write the version to all files that contain it, write the date to the changelog, and regenerate OLM's files."""
    write_version(version, checkout)
    file = checkout / changelog.FILE_NAME
    file.write_text(changelog.set_date(file.read_text(), version, f"{datetime.now(timezone.utc):%Y-%m-%d}"))
    run_python(checkout, "release.olm")


@contextmanager
def _replace_directory(directory: Path) -> Iterator[Path]:
    """Yield an empty directory; it replaces `directory` if the `with` block succeeds, and is removed otherwise."""
    staging = directory.with_name(f"{directory.name}.new")
    shutil.rmtree(staging, ignore_errors=True)  # A killed release leaves this directory.
    staging.mkdir(parents=True)
    try:
        yield staging
        shutil.rmtree(directory, ignore_errors=True)
        staging.rename(directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
