"""Tests for the archives and the manifest of krew, with krew itself and its validator."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.cluster import LocalCluster
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
from localcluster.programs import build
from tests.console.conftest import CreateNode
from tests.console.plugin_environment import PluginEnvironment, link_distributions

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


@pytest.fixture
def manifest(archive: Path, tmp_path: Path) -> Iterator[Path]:
    """Yield a manifest whose archives a local server serves."""
    served = tmp_path / "served"
    served.mkdir()
    archives: dict[Platform, Path] = {}
    for platform in PLATFORMS:
        archives[platform] = served / f"{platform.os}-{platform.architecture}.tar.gz"
        shutil.copy(archive, archives[platform])
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(served)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield write_manifest(VERSION, f"http://127.0.0.1:{server.server_port}/", archives, tmp_path)
    server.shutdown()
    thread.join()
    server.server_close()


class QuietHandler(SimpleHTTPRequestHandler):
    """A server of files that logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def krew(manifest: Path, served_cluster: LocalCluster, tmp_path: Path) -> PluginEnvironment:
    """Return an environment with Python, krew and its validator."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "krew"], check=True)
    programs = tmp_path / "krew" / "bin"
    built = build.ensure_programs(build.KREW)
    (programs / "kubectl-krew").symlink_to(built / "krew")
    (programs / "validate-krew-manifest").symlink_to(built / "validate-krew-manifest")
    return PluginEnvironment(programs.parent, tmp_path, served_cluster.kubeconfig)


@pytest.mark.distribution
def test_krew_accepts_manifest_and_installs_each_archive(krew: PluginEnvironment, manifest: Path) -> None:
    """Check the manifest with krew's own validator, which installs the archive of each platform."""
    result = krew.run("validate-krew-manifest", "-manifest", str(manifest))

    assert result.returncode == 0, result.stderr
    assert f"all {len(PLATFORMS)} spec.platforms installed fine" in result.stderr
    assert "exceeds" not in result.stderr


@pytest.mark.distribution
def test_validator_rejects_wrong_checksum(krew: PluginEnvironment, manifest: Path) -> None:
    """Check that the validator reads the archives, so that the test above can fail."""
    content = yaml.safe_load(manifest.read_text())
    content["spec"]["platforms"][-1]["sha256"] = "0" * 64
    manifest.write_text(yaml.safe_dump(content))

    assert krew.run("validate-krew-manifest", "-manifest", str(manifest)).returncode != 0


@pytest.mark.distribution
def test_plugin_installed_with_krew_reads_cluster(
    krew: PluginEnvironment,
    manifest: Path,
    create_node: CreateNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that kubectl finds the plugin and, with the link from the docs, its completion."""
    node = create_node()
    root = {"KREW_ROOT": str(tmp_path / "root"), "HOME": str(tmp_path)}
    monkeypatch.setenv("PATH", f"{tmp_path / 'root' / 'bin'}:{os.environ['PATH']}")

    installed = krew.run("kubectl", "krew", "install", f"--manifest={manifest}", **root)
    assert installed.returncode == 0, installed.stderr
    status = krew.run("kubectl", "maintenance", "status", node, **root)
    start = krew.run("kubectl", "maintenance", "start", node, "--dry-run", "-o", "json", **root)
    version = krew.run("kubectl", "maintenance", "--version", **root)
    link = installed.stderr.partition("ln -s ")[2].splitlines()[0]
    krew.run("sh", "-c", f"ln -s {link}", **root)
    completion = krew.run("kubectl", "__complete", "maintenance", "cordon", node, **root)

    assert (status.returncode, status.stderr) == (0, "")
    assert node in status.stdout
    assert json.loads(start.stdout)["spec"]["nodeName"] == node, start.stderr
    assert version.stdout == f"kubectl maintenance {VERSION}\n"
    assert completion.stdout == f"{node}\n:4\n", completion.stderr


@pytest.mark.slow
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


def test_launcher_rejects_unsupported_python(tmp_path: Path) -> None:
    """Check that the launcher's error names the supported Python versions if the current one is not supported."""
    program = tmp_path / PROGRAM
    program.write_text("import sys\nsys.version_info = (3, 9, 18)\n" + build_launcher())

    result = subprocess.run(["python3", program], capture_output=True, text=True, check=False)

    assert result.returncode == 1
    assert result.stderr == ("error: python3 on PATH is Python 3.9: kubectl maintenance requires Python 3.10 to 3.14\n")


def list_problems_of_pins(wheel: Path, platform: Platform, python: str) -> list[str]:
    """Return the libraries that the lock file does not pin, pins twice or pins without hashes."""
    metadata, environment = read_wheel_metadata(wheel), platform.build_environment(python)
    requirements = [requirement for extra in EXTRAS for requirement in list_requirements(metadata, extra)]
    pins = select_pins(find_distributions(requirements, environment), environment)
    names = [pin.partition("==")[0] for pin in pins]
    pinned = {name.casefold() for name in names}
    return [
        *(f"{requirement.name} missing" for requirement in requirements if requirement.name.casefold() not in pinned),
        *(f"{name} repeated" for name in set(names) if names.count(name) > 1),
        *(f"{pin} without hash" for pin in pins if " --hash=sha256:" not in pin),
    ]


@pytest.mark.slow
def test_lock_file_pins_each_library_with_hashes(wheel: Path) -> None:
    """Check that the lock file pins each required library exactly once per platform and Python version."""
    problems = {
        (platform.os, platform.architecture, python): list_problems_of_pins(wheel, platform, python)
        for platform in PLATFORMS
        for python in PYTHON_VERSIONS
    }

    assert problems
    assert {target: found for target, found in problems.items() if found} == {}


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
