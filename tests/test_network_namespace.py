"""Each worker of the end-to-end tests has its own loopback interface, so that all can use the same ports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import network_namespace
from tests.network_namespace import SCRIPT, flags

TALKS_TO_ITSELF = """
import os, socket
with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
    print(os.getuid(), os.getgid(), os.readlink("/proc/self/ns/net"))
"""


@pytest.fixture
def allowed() -> None:
    """Skip the test if the system does not permit network namespaces."""
    done = subprocess.run([sys.executable, SCRIPT, "-c", ""], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(done.stderr)


@pytest.mark.usefixtures("allowed")
def test_a_worker_talks_to_itself_alone_and_is_who_it_was() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "-c", TALKS_TO_ITSELF], capture_output=True, text=True, check=True)

    user, group, network = done.stdout.split()
    assert (int(user), int(group)) == (os.getuid(), os.getgid())
    assert network != os.readlink("/proc/self/ns/net")


@pytest.mark.usefixtures("allowed")
def test_so_many_workers_have_each_such_a_python() -> None:
    assert flags(4) == ["--dist", "load", "--tx", f"4*popen//python={sys.executable} {SCRIPT}"]


def test_where_nobody_may_have_one_there_is_one_worker(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    refused = tmp_path / "refused.py"
    refused.write_text("import sys; sys.exit('unshare: Operation not permitted')")
    monkeypatch.setattr(network_namespace, "SCRIPT", refused)

    assert flags(4) == ["-n", "1"]

    assert capfd.readouterr().err == (
        "one by one, since no worker can have a network of its own: unshare: Operation not permitted\n"
    )
