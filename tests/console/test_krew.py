"""Tests for the archives and the plugin manifest for krew."""

from __future__ import annotations

import subprocess
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from localcluster.errors import LocalClusterError
from localcluster.plugin.archives import PROGRAM, build_launcher, write_archive
from localcluster.plugin.krew_manifest import write_manifest
from localcluster.plugin.libraries import (
    EXTRAS,
    PLATFORMS,
    PYTHON_VERSIONS,
    UNUSED_DISTRIBUTIONS,
    Platform,
    download_libraries,
)
from localcluster.plugin.requirements import (
    find_distributions,
    list_requirements,
    read_wheel_metadata,
    select_pins,
)
from tests.console.plugin_environment import link_distributions

VERSION = "0.1.0"


@pytest.fixture(scope="module")
def archive(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a krew archive with the libraries of the tests' environment instead of downloaded ones."""
    directory = tmp_path_factory.mktemp("archives")
    libraries = directory / "libraries"
    libraries.mkdir()
    metadata = read_wheel_metadata(wheel)
    requirements = [requirement for extra in EXTRAS for requirement in list_requirements(metadata, extra)]
    link_distributions(find_distributions(requirements) - UNUSED_DISTRIBUTIONS, libraries)
    write_archive(wheel, libraries, directory / "plugin.tar.gz")
    return directory / "plugin.tar.gz"


def test_archive_is_reproducible_and_omits_unused_modules(archive: Path, wheel: Path, tmp_path: Path) -> None:
    """Check the archive's executables, and that it omits the generated clients, the largest part of `kubernetes`."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "library.py").write_text("VALUE = 1\n")
    for name in ("first", "second"):
        write_archive(wheel, libraries, tmp_path / f"{name}.tar.gz")
    with tarfile.open(archive) as tar:
        members = {member.name: member for member in tar.getmembers()}

    assert members[PROGRAM].mode == 0o755
    assert {"LICENSE", "lib/console/cli.py", "lib/click/__init__.py", "lib/flask/__init__.py"} <= members.keys()
    assert [name for name in members if name.startswith(("lib/kubernetes/client/", "lib/pydantic"))] == []
    assert [name for name in members if name.endswith(".pyc")] == []
    assert (tmp_path / "first.tar.gz").read_bytes() == (tmp_path / "second.tar.gz").read_bytes()


def test_manifest_contains_archive_url_and_checksum_of_each_platform(archive: Path, tmp_path: Path) -> None:
    """Check that the manifest contains the fields that krew requires, and respects krew's limits for line lengths."""
    archives = dict.fromkeys(PLATFORMS, archive)
    manifest = yaml.safe_load(write_manifest(VERSION, "https://downloads.example/", archives, tmp_path).read_text())
    spec, platforms = manifest["spec"], manifest["spec"]["platforms"]
    selectors = [platform["selector"]["matchLabels"] for platform in platforms]

    assert (manifest["apiVersion"], manifest["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert (manifest["metadata"]["name"], spec["version"]) == ("maintenance", f"v{VERSION}")
    assert "\n" not in spec["shortDescription"]
    assert sorted((labels["os"], labels["arch"]) for labels in selectors) == [
        *(("darwin", "amd64"), ("darwin", "arm64"), ("linux", "amd64"), ("linux", "arm64")),
    ]
    assert {(platform["uri"], platform["sha256"], platform["bin"]) for platform in platforms} == {
        (f"https://downloads.example/{archive.name}", sha256(archive.read_bytes()).hexdigest(), PROGRAM)
    }


def test_launcher_rejects_unsupported_python(tmp_path: Path) -> None:
    """Check that the launcher's error names the supported Python versions if the current one is not supported."""
    program = tmp_path / PROGRAM
    program.write_text("import sys\nsys.version_info = (3, 9, 18)\n" + build_launcher())

    result = subprocess.run(["python3", program], capture_output=True, text=True, check=False)

    assert result.returncode == 1
    assert result.stderr == ("error: python3 on PATH is Python 3.9: kubectl maintenance requires Python 3.10 to 3.14\n")


@pytest.mark.parametrize("python", PYTHON_VERSIONS)
@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda platform: f"{platform.os}-{platform.architecture}")
def test_lock_file_pins_each_library_with_hashes(wheel: Path, platform: Platform, python: str) -> None:
    """Check that the lock file pins each required library exactly once per platform and Python version."""
    metadata, environment = read_wheel_metadata(wheel), platform.build_environment(python)
    requirements = [requirement for extra in EXTRAS for requirement in list_requirements(metadata, extra)]
    pins = select_pins(find_distributions(requirements, environment), environment)
    names = [pin.partition("==")[0] for pin in pins]

    assert {requirement.name.casefold() for requirement in requirements} <= {name.casefold() for name in names}
    assert len(names) == len(set(names))
    assert all(" --hash=sha256:" in pin for pin in pins)


@pytest.mark.slow
def test_libraries_for_several_python_versions_share_one_directory(wheel: Path, tmp_path: Path) -> None:
    """Check that libraries for other platforms can be downloaded, and that the files of all Python versions coexist."""
    (platform,) = [platform for platform in PLATFORMS if (platform.os, platform.architecture) == ("darwin", "arm64")]
    for python in PYTHON_VERSIONS[-2:]:
        download_libraries(wheel, platform, python, tmp_path)

    compiled = {path.name for path in (tmp_path / "msgspec").glob("*.so")}
    assert compiled == {f"_core.cpython-{python.replace('.', '')}-darwin.so" for python in PYTHON_VERSIONS[-2:]}
    assert (tmp_path / "click" / "__init__.py").is_file()


@pytest.mark.slow
def test_library_without_wheel_for_platform_is_reported(wheel: Path, tmp_path: Path) -> None:
    """Check that the error about a library without a wheel for a platform names this platform."""
    platform = Platform("plan9", "mips", "Plan9", "mips", ("plan9_mips",))

    with pytest.raises(LocalClusterError, match=r"^cannot download the libraries for plan9/mips and Python "):
        download_libraries(wheel, platform, "3.10", tmp_path)
