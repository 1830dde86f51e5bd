"""Tests that each worker of the end-to-end tests has its own loopback interface, so that ports do not conflict."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import network_namespace
from tests.network_namespace import SCRIPT_PATH, build_pytest_options

LOOPBACK_SCRIPT = """
import os, socket
with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
    print(os.getuid(), os.getgid(), os.readlink("/proc/self/ns/net"))
"""


@pytest.fixture
def skip_unless_network_namespaces_are_permitted() -> None:
    """Skip the test if the system does not permit network namespaces."""
    result = subprocess.run([sys.executable, SCRIPT_PATH, "-c", ""], capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(result.stderr)


@pytest.mark.usefixtures("skip_unless_network_namespaces_are_permitted")
def test_worker_has_its_own_network_and_same_user() -> None:
    result = subprocess.run(
        [sys.executable, SCRIPT_PATH, "-c", LOOPBACK_SCRIPT], capture_output=True, text=True, check=True
    )

    user, group, network_namespace_id = result.stdout.split()
    assert (int(user), int(group)) == (os.getuid(), os.getgid())
    assert network_namespace_id != os.readlink("/proc/self/ns/net")


@pytest.mark.usefixtures("skip_unless_network_namespaces_are_permitted")
def test_each_worker_runs_network_namespace_script_as_interpreter() -> None:
    assert build_pytest_options(4) == ["--dist", "load", "--tx", f"4*popen//python={sys.executable} {SCRIPT_PATH}"]


def test_only_one_worker_runs_if_network_namespaces_are_not_permitted(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "refused.py"
    script.write_text("import sys; sys.exit('unshare: Operation not permitted')")
    monkeypatch.setattr(network_namespace, "SCRIPT_PATH", script)

    assert build_pytest_options(4) == ["-n", "1"]

    assert capfd.readouterr().err == (
        "one worker only, without its own network namespace: unshare: Operation not permitted\n"
    )
