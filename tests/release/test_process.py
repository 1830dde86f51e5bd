"""Tests that a release either creates a commit, a tag and all files, or changes nothing if it is not possible."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from datetime import datetime, timezone
from pathlib import Path

import pytest
import yaml

from release.artifacts import Options, pack
from release.errors import ReleaseError
from release.process import build_files, release
from release.repository import run_git
from release.versions import list_version_files
from tests.proofs import proves

WITHOUT_IMAGE = Options(has_image=False)
ENGINE = """\
#!/bin/sh
# Instead of building an image, this script logs its calls, and writes the SBOM that the Dockerfile would write.
echo "$@" >> {calls}
case "$*" in *"--output type=local,dest=build"*) echo '{{"bomFormat": "CycloneDX"}}' > build/sbom.json;; esac
[ "$1" != "$FAILING" ]
"""


def describe_repository(repository: Path) -> tuple[str, ...]:
    """Return what a failed release must not change: the branch, commits, tags, work trees, files and build output."""
    return (
        run_git(repository, "log", "--all", "--format=%H %D"),
        run_git(repository, "status", "--porcelain", "--branch"),
        run_git(repository, "tag", "--list"),
        run_git(repository, "worktree", "list"),
        "\n".join(sorted(str(path) for path in repository.glob("build/**/*") if path.is_file())),
    )


@proves("NMO-26", "MUT-4a")
def test_release_creates_commit_tag_and_files(small_repository: Path) -> None:
    """NMO-26: the tag is on a new commit with version and date, and the notes equal the changelog's section."""
    today = f"{datetime.now(timezone.utc):%Y-%m-%d}"

    directory = release(small_repository, "1.2.3", WITHOUT_IMAGE)

    assert directory == small_repository / "build" / "release" / "1.2.3"
    assert run_git(small_repository, "log", "--format=%s") == "Release 1.2.3\nBegin"
    assert run_git(small_repository, "symbolic-ref", "--short", "HEAD") == "main"
    assert run_git(small_repository, "status", "--porcelain") == ""
    assert run_git(small_repository, "rev-parse", "v1.2.3^{commit}") == run_git(small_repository, "rev-parse", "HEAD")
    assert run_git(small_repository, "cat-file", "-t", "v1.2.3") == "tag"
    assert "- A node is drained faster." in run_git(small_repository, "tag", "--list", "--format=%(contents)")
    assert f"## 1.2.3 - {today}\n" in (small_repository / "CHANGELOG.md").read_text()
    for file in list_version_files(small_repository):
        assert "1.2.3" in file.read_text()
        assert "1.2.2" not in file.read_text()
    assert (directory / "RELEASE_NOTES.md").read_text() == "# 1.2.3\n\n- A node is drained faster.\n"
    assert {file.name for file in directory.iterdir()} == {
        *("drain-1.2.3.tgz", "node-maintenance-olm-1.2.3.tar.gz", "olm.yaml", "RELEASE_NOTES.md", "SHA256SUMS"),
    }
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=directory, check=True)
    checksums = (directory / "SHA256SUMS").read_text()
    assert sorted(re.findall(r"  (\S+)$", checksums, re.MULTILINE)) == sorted(
        file.name for file in directory.iterdir() if file.name != "SHA256SUMS"
    )


@proves("MUT-4a")
def test_release_candidate_keeps_section_of_release_undated(small_repository: Path) -> None:
    """MUT-4a: a release candidate has its own tag, and the release's changelog heading gets no date yet."""
    release(small_repository, "1.2.3-rc.1", WITHOUT_IMAGE)

    assert "## 1.2.3 - not released yet" in (small_repository / "CHANGELOG.md").read_text()
    assert run_git(small_repository, "tag", "--list") == "v1.2.3-rc.1"

    release(small_repository, "1.2.3", WITHOUT_IMAGE)
    assert run_git(small_repository, "tag", "--list").split() == ["v1.2.3", "v1.2.3-rc.1"]


@proves("NMO-26")
@pytest.mark.parametrize(
    ("preparation", "version", "message"),
    [
        (
            ["tag", "v1.2.3"],
            "1.2.3",
            "the tag v1.2.3 exists already, on commit .*: release the next version, or .*--delete",
        ),
        ([], "1.2", 'version "1.2" is not a semantic version that can be released: write MAJOR.MINOR.PATCH'),
        ([], "1.4.0", 'CHANGELOG.md has no section for version 1.4.0: add the heading "## 1.4.0 - not released yet"'),
        ([], "1.2.2", "the section of version 1.2.2 in CHANGELOG.md is empty: describe what changed"),
        (
            ["mv", "CHANGELOG.md", "HISTORY.md"],
            "1.2.3",
            "the work tree has changes that are not committed: .*HISTORY.md: commit or stash them",
        ),
        (["rm", "--quiet", "release/olm.py"], "1.2.3", "that are not committed: release/olm.py: commit or stash them"),
    ],
    ids=["tag exists", "version", "no section", "empty section", "renamed file", "deleted file"],
)
def test_impossible_release_is_rejected(
    small_repository: Path, preparation: list[str], version: str, message: str
) -> None:
    """NMO-26: the error about an impossible release names the remedy, and nothing is changed."""
    if preparation:
        run_git(small_repository, *preparation)
    before = describe_repository(small_repository)

    with pytest.raises(ReleaseError, match=message):
        release(small_repository, version, WITHOUT_IMAGE)

    assert describe_repository(small_repository) == before


def test_untracked_files_are_rejected(small_repository: Path) -> None:
    """Check that files that git does not track are rejected, too, and that the error lists only a few of many files."""
    for number in range(5):
        (small_repository / f"new-{number}").touch()

    with pytest.raises(ReleaseError, match="committed: new-0, new-1, new-2 and 2 more: commit or stash them"):
        release(small_repository, "1.2.3", WITHOUT_IMAGE)


def test_failed_build_changes_nothing(small_repository: Path) -> None:
    """Check that a release whose files cannot be built creates neither a commit nor a tag nor a directory."""
    (small_repository / "release" / "olm.py").write_text("raise SystemExit('error: no manifests')\n")
    run_git(small_repository, "commit", "--quiet", "--all", "--message", "Break")
    before = describe_repository(small_repository)

    with pytest.raises(ReleaseError, match=r"^python -m release.olm failed, see its error above: correct it, then run"):
        release(small_repository, "1.2.3", WITHOUT_IMAGE)

    assert describe_repository(small_repository) == before


def test_release_files_are_built_from_tag(small_repository: Path) -> None:
    """Check that the files built from a tag equal those of its release, and that no commit or tag is created."""
    directory = release(small_repository, "1.2.3", WITHOUT_IMAGE)
    checksums = (directory / "SHA256SUMS").read_text()
    (directory / "SHA256SUMS").unlink()
    run_git(small_repository, "checkout", "--quiet", "v1.2.3")
    log = run_git(small_repository, "log", "--all", "--format=%H %D")

    assert build_files(small_repository, "1.2.3", WITHOUT_IMAGE) == directory

    assert (directory / "SHA256SUMS").read_text() == checksums
    assert run_git(small_repository, "log", "--all", "--format=%H %D") == log


def test_building_files_of_another_version_is_rejected(small_repository: Path) -> None:
    with pytest.raises(ReleaseError, match=r"this commit has version 1.2.2, not 1.2.3: check out the tag v1.2.3"):
        build_files(small_repository, "1.2.3", WITHOUT_IMAGE)


def test_commit_during_release_is_kept(small_repository: Path) -> None:
    """Check that a commit made during the build is kept, and that the tag is removed again."""
    (small_repository / "release" / "olm.py").write_text(
        f"import subprocess\nsubprocess.run(['git', 'commit', '--quiet', '--allow-empty', '--message', 'Other'],"
        f" cwd={str(small_repository)!r}, check=True)\n"
        f"from pathlib import Path\nfor name in ('bundle.Dockerfile', 'deploy/olm.yaml'):\n"
        "    Path(name).parent.mkdir(exist_ok=True)\n    Path(name).touch()\n"
    )
    run_git(small_repository, "commit", "--quiet", "--all", "--message", "Change")

    with pytest.raises(ReleaseError, match=r"git merge failed: .*fast-forward"):
        release(small_repository, "1.2.3", WITHOUT_IMAGE)

    assert run_git(small_repository, "log", "--format=%s").splitlines()[-2:] == ["Change", "Begin"]
    assert "Release 1.2.3" not in run_git(small_repository, "log", "--format=%s")
    assert run_git(small_repository, "tag", "--list") == ""


def test_release_command_requires_version() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "release", ""],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )

    assert result.returncode == 1
    assert result.stderr == "error: VERSION is not set: name the version to release: make release VERSION=1.2.3\n"


def test_equal_files_result_in_equal_archives(tmp_path: Path) -> None:
    """Check that an archive contains no times, so that its checksum depends only on the files."""
    digests = set()
    for number, mode in enumerate((0o644, 0o600)):
        file = tmp_path / "file"
        file.write_text("content")
        file.chmod(mode)
        os.utime(file, (number, number))
        pack(tmp_path / f"{number}.tgz", {"directory/file": file})
        digests.add((tmp_path / f"{number}.tgz").read_bytes())

    assert len(digests) == 1


@pytest.mark.distribution
@proves("NMO-26", "KNM-7", "MUT-4a")
def test_release_of_project_contains_sbom_and_olm_files(project_repository: Path, tmp_path: Path) -> None:
    """NMO-26: a release of this project contains the image's SBOM, and OLM's files, which name the image.

    A shell script replaces the container engine. If this script fails, nothing is changed.
    """
    engine = tmp_path / "engine" / "podman"
    engine.parent.mkdir()
    engine.write_text(ENGINE.format(calls=tmp_path / "calls"))
    engine.chmod(0o755)
    command = [sys.executable, "-m", "release", "9.8.7", "--image", "registry.example/nodemaintenance"]
    environment = {**os.environ, "PATH": f"{engine.parent}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    before = describe_repository(project_repository)

    def run_release(failing: str) -> subprocess.CompletedProcess[str]:
        variables = {**environment, "FAILING": failing}
        return subprocess.run(
            command, cwd=project_repository, env=variables, capture_output=True, text=True, check=False
        )

    failed = run_release(failing="build")
    assert failed.returncode == 1
    assert "error: make image failed, see its error above" in failed.stderr
    assert describe_repository(project_repository) == before

    result = run_release(failing="")
    assert result.returncode == 0, result.stderr
    directory = project_repository / "build" / "release" / "9.8.7"
    for line in (
        "git push origin HEAD v9.8.7",
        "make container-push IMAGE=registry.example/nodemaintenance VERSION=9.8.7",
    ):
        assert f"  {line}\n" in result.stdout
    assert (directory / "sbom.cdx.json").read_text() == '{"bomFormat": "CycloneDX"}\n'
    calls = (tmp_path / "calls").read_text()
    assert "--tag registry.example/nodemaintenance:v9.8.7 ." in calls
    assert f"--build-arg REVISION={run_git(project_repository, 'rev-parse', 'HEAD')} " in calls
    with tarfile.open(directory / "node-maintenance-olm-9.8.7.tar.gz") as archive:
        (name,) = (name for name in archive.getnames() if name.endswith(".clusterserviceversion.yaml"))
        service_version = yaml.safe_load(archive.extractfile(name) or b"")
        catalog = archive.extractfile("catalog/node-maintenance/catalog.yaml")
        assert "bundle.Dockerfile" in archive.getnames()
        assert b"image: registry.example/nodemaintenance-bundle:v9.8.7\n" in (catalog.read() if catalog else b"")
    assert service_version["metadata"]["name"] == "node-maintenance.v9.8.7"
    assert service_version["metadata"]["annotations"]["containerImage"] == "registry.example/nodemaintenance:v9.8.7"
    assert "image: registry.example/nodemaintenance:v9.8.7\n" in (directory / "olm.yaml").read_text()
    # The committed bundle has the version, and the name of the image that is also in the manifests.
    assert "node-maintenance.v9.8.7" in run_git(project_repository, "show", f"v9.8.7:{name}")
    assert run_git(project_repository, "status", "--porcelain") == ""
