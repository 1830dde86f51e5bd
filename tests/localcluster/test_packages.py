"""Tests that a make target installs the programs that it needs, or lists all missing programs in one line.

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

from localcluster.errors import LocalClusterError
from localcluster.programs import packages

ROOT = Path(__file__).parents[2]
NOBODY_PREFIX = (str(shutil.which("setpriv")), "--reuid=65534", "--regid=65534", "--clear-groups")
REQUIRED_TOOLS = ("sh", "make")
APT_SCRIPT = """#!/bin/sh
echo "$DEBIAN_FRONTEND $*" >> {calls}
[ "$4 $5" != "DPkg::Lock::Timeout=300 install" ] && exit
for name in {programs}; do : > {directory}/$name; /bin/chmod +x {directory}/$name; done
exit {status}
"""


class FakeMachine:
    """A fake machine whose PATH contains only an apt-get that logs its calls."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "path"
        self._calls = folder / "calls"
        self.path.mkdir()

    def write_apt_get(self, *programs: str, status: int = 0) -> None:
        """Write a fake apt-get that installs these programs regardless of its arguments."""
        fields = {"calls": self._calls, "directory": self.path, "programs": " ".join(programs), "status": status}
        (self.path / "apt-get").write_text(APT_SCRIPT.format(**fields))
        (self.path / "apt-get").chmod(0o755)

    def read_calls(self) -> list[str]:
        """Return the logged calls."""
        return self._calls.read_text().splitlines() if self._calls.exists() else []


@pytest.fixture
def fake_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """Return a fake Debian machine with Python and its module venv, but without the required programs."""
    fake = FakeMachine(tmp_path)
    monkeypatch.setenv("PATH", str(fake.path))
    monkeypatch.setenv("SSL_CERT_FILE", "given")
    monkeypatch.setattr(packages, "OS_RELEASE_FILE", tmp_path / "os-release")
    return fake


def test_missing_packages_are_installed(fake_machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that make as root on Debian updates the package lists, and installs only the required packages."""
    fake_machine.write_apt_get("chromium", "chromedriver")

    packages.ensure_installed(["screenshots"], may_install=True)

    update, install = fake_machine.read_calls()
    assert update == "noninteractive -q -y -o DPkg::Lock::Timeout=300 update"
    assert install.endswith(" install --no-install-recommends chromium chromium-driver")
    assert "installing chromium chromium-driver" in capsys.readouterr().out


def test_existing_programs_are_not_installed(fake_machine: FakeMachine) -> None:
    """Check that programs that exist are not installed."""
    fake_machine.write_apt_get("chromium", "chromedriver")
    packages.ensure_installed(["screenshots"], may_install=True)
    fake_machine._calls.unlink()

    packages.ensure_installed(["screenshots"], may_install=True)

    assert fake_machine.read_calls() == []


def test_demo_and_local_delivery_require_no_programs(fake_machine: FakeMachine) -> None:
    """Check that the demo, the linters and the local delivery require no additional programs."""
    fake_machine.write_apt_get()

    packages.ensure_installed(["demo", "lint", "check", "up", "local"], may_install=True)

    assert fake_machine.read_calls() == []


@pytest.mark.parametrize("target", ["bench", "chaos"])
def test_target_requires_programs_of_selected_engines(
    fake_machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Check that `bench` and `chaos` require the programs of the selected engines, and that other targets do not."""
    monkeypatch.setattr(packages, "PROGRAMS", (packages.Program("a-broker", "a-broker", frozenset({"rabbitmq"})),))
    monkeypatch.setattr(sys, "argv", ["packages", "--engines", "local, rabbitmq", "lint"])
    packages.main()

    monkeypatch.setattr(sys, "argv", ["packages", "--engines", "local, rabbitmq", target])
    with pytest.raises(SystemExit, match="missing: a-broker;"):
        packages.main()


def test_error_for_unprivileged_user_lists_missing_programs(fake_machine: FakeMachine) -> None:
    """Check that the error for a user who may not install packages lists all missing programs and the command."""
    fake_machine.write_apt_get()

    with pytest.raises(LocalClusterError) as error:
        packages.ensure_installed(["screenshots"], may_install=False)

    assert str(error.value) == (
        "missing: chromium, chromedriver; run as root: "
        "apt-get update && apt-get install -y --no-install-recommends chromium chromium-driver"
    )
    assert fake_machine.read_calls() == []


def test_error_on_system_without_apt_names_debian_packages(fake_machine: FakeMachine) -> None:
    """Check that nothing is installed on a system without apt-get; the error names Debian's packages."""
    with pytest.raises(LocalClusterError, match=r"this system's package manager; Debian's packages are chromium chrom"):
        packages.ensure_installed(["screenshots"], may_install=True)


def test_browser_packages_have_ubuntu_names_on_ubuntu(
    fake_machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that Ubuntu's names of packages are used on Ubuntu, because only Debian has a package `chromium`."""
    packages.OS_RELEASE_FILE.write_text('NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\n')

    names = {requirement.package for requirement in packages.list_missing_packages(["screenshots"])}

    assert names == {"chromium-browser", "chromium-chromedriver"}


def test_failed_installation_is_an_error(fake_machine: FakeMachine) -> None:
    """Check that a failed installation is an error that names the packages."""
    fake_machine.write_apt_get(status=100)

    with pytest.raises(LocalClusterError, match=r"could not install chromium chromium-driver \(exit 100\)"):
        packages.ensure_installed(["screenshots"], may_install=True)


def test_program_missing_after_installation_is_an_error(fake_machine: FakeMachine) -> None:
    """Check that a program that is missing even after its installation is an error."""
    fake_machine.write_apt_get("chromium")

    with pytest.raises(LocalClusterError, match=r"^missing: chromedriver; run as root: "):
        packages.ensure_installed(["screenshots"], may_install=True)


def test_python_without_venv_requires_venv_package(
    fake_machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that Debian's package for the module venv is required if the virtual environment does not exist yet."""
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    monkeypatch.chdir(tmp_path)
    python_version = f"{sys.version_info.major}.{sys.version_info.minor}"

    assert packages.list_missing_packages(["demo"]) == [
        packages.MissingPackage(f"the module venv of Python {python_version}", f"python{python_version}-venv")
    ]

    packages.VENV_STAMP.parent.mkdir()
    packages.VENV_STAMP.touch()
    assert packages.list_missing_packages(["demo"]) == []


def test_venv_is_not_required_with_uv(fake_machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the module venv is not required if uv is on PATH, unless `make UV=` disables uv."""
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    monkeypatch.chdir(fake_machine.path)
    monkeypatch.delenv("UV", raising=False)
    (fake_machine.path / "uv").touch(mode=0o755)

    assert packages.list_missing_packages(["demo"]) == []

    monkeypatch.setenv("UV", "")
    assert [requirement.package.endswith("-venv") for requirement in packages.list_missing_packages(["demo"])] == [True]


def test_go_requires_ca_certificates(fake_machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that Go requires CA certificates, without which a minimal Debian could not download anything."""
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setattr(packages, "CA_BUNDLES", ())

    assert [requirement.package for requirement in packages.list_missing_packages(["demo"])] == ["ca-certificates"]


def test_missing_program_error_names_remedy(fake_machine: FakeMachine) -> None:
    """Check that the error about a missing program contains the command that installs it."""
    with pytest.raises(LocalClusterError, match=r"^missing: promtool; .* prometheus$"):
        packages.find_program("promtool")


def find_shared_python() -> str:
    """Return the path of the Python that runs these tests, or of the system's Python if only root can read it."""
    paths = (f"{sys.base_prefix}/bin/python3", "/usr/bin/python3")
    prefix = build_unprivileged_prefix()
    return next(python for python in paths if is_successful(*prefix, "sh", "-c", f"{python} -c ''"))


def is_successful(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def build_unprivileged_prefix() -> tuple[str, ...]:
    """Return a command prefix that runs a command as an unprivileged user."""
    return NOBODY_PREFIX if os.geteuid() == 0 else ()


@pytest.fixture
def source_copy() -> Iterator[Path]:
    """Yield a world-readable copy of the files that make needs, and a PATH directory without the required programs."""
    folder = Path(tempfile.mkdtemp(prefix="machine-"))
    shutil.copytree(ROOT / "localcluster", folder / "localcluster", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "pyproject.toml", "requirements.txt", "requirements-dev.txt", "requirements-dev.lock"):
        shutil.copy(ROOT / name, folder)
    (folder / "path").mkdir()
    for name in REQUIRED_TOOLS:
        (folder / "path" / name).symlink_to(str(shutil.which(name)))
    (folder / "path" / "python3").symlink_to(find_shared_python())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_make_test_without_programs_fails_within_seconds(source_copy: Path) -> None:
    """Check that `make test` as an unprivileged user fails within seconds and lists all missing programs."""
    started = time.monotonic()
    result = subprocess.run(
        [*build_unprivileged_prefix(), "make", "test"],
        cwd=source_copy,
        env={"PATH": str(source_copy / "path"), "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 2
    assert result.stdout == ""
    (error_line, _) = result.stderr.splitlines()  # The second line is the error of make itself.
    assert error_line.startswith("error: missing: ")
    assert "chromium, chromedriver, promtool; install it with " in error_line
    assert error_line.endswith(" chromium chromium-driver prometheus")
    assert time.monotonic() - started < 5
    assert not (source_copy / ".venv").exists()
