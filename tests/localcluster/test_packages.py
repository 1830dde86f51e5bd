"""On a new machine, a make target installs the programs that it needs, or lists all missing ones in one line.

A shell script replaces apt-get.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.programs import packages
from localcluster.errors import LocalClusterError

ROOT = Path(__file__).parents[2]
NOBODY = (str(shutil.which("setpriv")), "--reuid=65534", "--regid=65534", "--clear-groups")
TOOLS = ("sh", "make")
APT = """#!/bin/sh
echo "$DEBIAN_FRONTEND $*" >> {calls}
[ "$4 $5" != "DPkg::Lock::Timeout=300 install" ] && exit
for name in {programs}; do : > {folder}/$name; /bin/chmod +x {folder}/$name; done
exit {status}
"""


class Machine:
    """A machine whose PATH contains only an apt-get that logs its calls."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "path"
        self._calls = folder / "calls"
        self.path.mkdir()

    def installs(self, *programs: str, status: int = 0) -> None:
        """Write an apt-get that installs these programs, whatever its arguments are."""
        words = {"calls": self._calls, "folder": self.path, "programs": " ".join(programs), "status": status}
        (self.path / "apt-get").write_text(APT.format(**words))
        (self.path / "apt-get").chmod(0o755)

    def calls(self) -> list[str]:
        """Return the logged calls."""
        return self._calls.read_text().splitlines() if self._calls.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a Debian machine with Python and its module venv, but without the required programs."""
    machine = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(machine.path))
    monkeypatch.setenv("SSL_CERT_FILE", "given")
    monkeypatch.setattr(packages, "RELEASE", tmp_path / "os-release")
    return machine


def test_what_a_target_lacks_is_installed(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that root on Debian updates the lists, then installs only required packages, without questions."""
    machine.installs("chromium", "chromedriver")

    packages.provide(["screenshots"], may_install=True)

    update, install = machine.calls()
    assert update == "noninteractive -q -y -o DPkg::Lock::Timeout=300 update"
    assert install.endswith(" install --no-install-recommends chromium chromium-driver")
    assert "installing chromium chromium-driver" in capsys.readouterr().out


def test_what_is_there_is_not_installed(machine: Machine) -> None:
    """Check that existing programs are not installed again."""
    machine.installs("chromium", "chromedriver")
    packages.provide(["screenshots"], may_install=True)
    machine._calls.unlink()

    packages.provide(["screenshots"], may_install=True)

    assert machine.calls() == []


def test_nothing_is_installed_for_the_demo(machine: Machine) -> None:
    """Check that the demo, the linters and the local delivery need no programs."""
    machine.installs()

    packages.provide(["demo", "lint", "check", "up", "local"], may_install=True)

    assert machine.calls() == []


@pytest.mark.parametrize("target", ["bench", "chaos"])
def test_a_target_of_engines_needs_what_they_need(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Check that `bench` and `chaos` need the programs of the selected engines, and that other targets do not."""
    monkeypatch.setattr(packages, "PROGRAMS", (packages.Program("a-broker", "a-broker", frozenset({"rabbitmq"})),))
    monkeypatch.setattr(sys, "argv", ["packages", "--engines", "local, rabbitmq", "lint"])
    packages.main()

    monkeypatch.setattr(sys, "argv", ["packages", "--engines", "local, rabbitmq", target])
    with pytest.raises(SystemExit, match="missing: a-broker;"):
        packages.main()


def test_without_the_right_to_install_all_that_is_missing_is_said_at_once(machine: Machine) -> None:
    """Check that without the right to install, one line names everything that is missing, and the command."""
    machine.installs()

    with pytest.raises(LocalClusterError) as raised:
        packages.provide(["screenshots"], may_install=False)

    assert str(raised.value) == (
        "missing: chromium, chromedriver; as root: "
        "apt-get update && apt-get install -y --no-install-recommends chromium chromium-driver"
    )
    assert machine.calls() == []


def test_another_system_is_told_the_names(machine: Machine) -> None:
    """Check that on a system without apt-get, nothing is installed and the Debian packages are named."""
    with pytest.raises(LocalClusterError, match=r"this system's package manager; Debian's packages are chromium chrom"):
        packages.provide(["screenshots"], may_install=True)


def test_ubuntu_names_its_browser_otherwise(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that Ubuntu gets the names of its own packages: `chromium` exists only in Debian."""
    packages.RELEASE.write_text('NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\n')

    needed = {need.package for need in packages.missing(["screenshots"])}

    assert needed == {"chromium-browser", "chromium-chromedriver"}


def test_a_failed_installation_is_an_error(machine: Machine) -> None:
    """Check that a failed installation is an error that names the packages."""
    machine.installs(status=100)

    with pytest.raises(LocalClusterError, match=r"could not install chromium chromium-driver \(exit 100\)"):
        packages.provide(["screenshots"], may_install=True)


def test_a_package_without_its_program_is_an_error(machine: Machine) -> None:
    """Check that a program that is still missing after the installation is an error."""
    machine.installs("chromium")

    with pytest.raises(LocalClusterError, match=r"^missing: chromedriver; as root: "):
        packages.provide(["screenshots"], may_install=True)


def test_a_python_without_virtual_environments_gets_its_package(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that Debian's package for the module venv is required until the environment exists."""
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    monkeypatch.chdir(tmp_path)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"

    assert packages.missing(["demo"]) == [
        packages.Need(f"the module venv of Python {version}", f"python{version}-venv")
    ]

    packages.ENVIRONMENT.parent.mkdir()
    packages.ENVIRONMENT.touch()
    assert packages.missing(["demo"]) == []


def test_uv_needs_no_module_venv_unless_it_is_turned_off(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the module venv is required only with `make UV=` if uv is on the PATH."""
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    monkeypatch.chdir(machine.path)
    monkeypatch.delenv("UV", raising=False)
    (machine.path / "uv").touch(mode=0o755)

    assert packages.missing(["demo"]) == []

    monkeypatch.setenv("UV", "")
    assert [need.package.endswith("-venv") for need in packages.missing(["demo"])] == [True]


def test_go_needs_to_trust_somebody(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a CA list is required: a minimal Debian has none, and Go could download nothing."""
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setattr(packages, "CERTIFICATES", ())

    assert [need.package for need in packages.missing(["demo"])] == ["ca-certificates"]


def test_a_program_that_is_missing_says_how_to_get_it(machine: Machine) -> None:
    """Check that a test that starts a missing program fails with the command that installs it."""
    with pytest.raises(LocalClusterError, match=r"^promtool is missing; .* prometheus$"):
        packages.find("promtool")


def python_for_all() -> str:
    """Return the Python of these tests, or the system's if an unprivileged user cannot read the former."""
    pythons = (f"{sys.base_prefix}/bin/python3", "/usr/bin/python3")
    return next(python for python in pythons if runs(*user(), "sh", "-c", f"{python} -c ''"))


def runs(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def user() -> tuple[str, ...]:
    """Return a command prefix that runs a command as an unprivileged user."""
    return NOBODY if os.geteuid() == 0 else ()


@pytest.fixture
def copy() -> Iterator[Path]:
    """Yield a world-readable copy of the files that make needs, and a PATH without the required programs."""
    folder = Path(tempfile.mkdtemp(prefix="machine-"))
    shutil.copytree(ROOT / "localcluster", folder / "localcluster", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "pyproject.toml", "requirements.txt", "requirements-dev.txt", "requirements-dev.lock"):
        shutil.copy(ROOT / name, folder)
    (folder / "path").mkdir()
    for name in TOOLS:
        (folder / "path" / name).symlink_to(str(shutil.which(name)))
    (folder / "path" / "python3").symlink_to(python_for_all())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_make_test_on_a_machine_without_our_programs_stops_within_seconds(copy: Path) -> None:
    """Check that `make test` of an unprivileged user stops within seconds and names everything that is missing."""
    started = time.monotonic()
    done = subprocess.run(
        [*user(), "make", "test"],
        cwd=copy,
        env={"PATH": str(copy / "path"), "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert done.stdout == ""
    (line, _) = done.stderr.splitlines()  # the other line is that of make
    assert line.startswith("error: missing: ")
    assert "chromium, chromedriver, promtool; install it with " in line
    assert line.endswith(" chromium chromium-driver prometheus")
    assert time.monotonic() - started < 5
    assert not (copy / ".venv").exists()
