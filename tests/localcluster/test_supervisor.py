"""`make up` and `make down`: a started cluster runs until it is stopped, and then stops completely."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from localcluster import delivery_engines
from localcluster.processes import await_ready
from localcluster.programs import build
from localcluster.errors import LocalClusterError
from localcluster.up import state_directory, start, status
from localcluster.up.cluster_spec import Wish
from tests.localcluster.commands import ROOT, command, kubectl, living, record_of, run, soon
from tests.proofs import proves

pytestmark = pytest.mark.slow

AS_NOBODY = """
import os, sys
from pathlib import Path
from localcluster.up import down, folder, supervisor, wish
from localcluster.errors import LocalClusterError
if os.geteuid() == 0:
    os.seteuid(65534)
try:
    {deed}(Path(sys.argv[1]))
except (LocalClusterError, OSError) as error:
    sys.exit(f"error: {{error}}")
"""
"""Script that runs a command as an unprivileged user.

It switches the user itself, because Python may be readable for root only.
"""
SUPERVISE = "(lambda directory: supervisor.supervise(directory, wish.Wish()))"
UP = "NODES=2 CONTROL_PLANES=1 DELIVERY=local"
SERVERS = 9
"""The processes are etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok and those of the product.

The product's processes are functions, delivery, console and validate.
"""


def test_up_returns_when_all_is_ready_and_down_ends_it(directory: Path) -> None:
    """Check that `up` returns with a working cluster, a second `up` reports it, and `down` stops all processes.

    The given number of nodes has the control-plane role. `down` stops everything although some files of the directory
    were deleted.
    """
    wanted = ("--nodes", "2", "--control-planes", "1")
    up = run(directory, "up", *wanted)
    groups = state_directory.groups(directory)
    kubectl = [
        str(build.servers() / "kubectl"),
        "--kubeconfig",
        str(directory / "kubeconfig"),
        "get",
        "nodes",
        "-o",
        "name",
    ]
    nodes = subprocess.run(kubectl, capture_output=True, text=True, check=True).stdout.split()
    role = ["-l", "node-role.kubernetes.io/control-plane"]
    control_plane = subprocess.run([*kubectl, *role], capture_output=True, text=True, check=True).stdout.split()
    again = run(directory, "up", *wanted)
    for name in (state_directory.PID_FILE, state_directory.PROCESSES_FILE, state_directory.KUBECONFIG):
        (directory / name).unlink()
    down = run(directory, "down")

    assert up.returncode == 0, up.stdout + up.stderr
    assert f"export KUBECONFIG={directory}/kubeconfig\n" in up.stdout
    assert len(groups) == SERVERS
    assert nodes == ["node/node-1", "node/node-2"]
    assert control_plane == ["node/node-1"]
    assert (again.returncode, again.stdout.splitlines()[0]) == (0, f"already up, with {UP}; `make down` ends it")
    assert (down.returncode, down.stdout) == (0, "down\n")
    assert not state_directory.running(directory)
    assert soon(lambda: living(groups) == [])


@proves("NMO-18")
def test_admission_is_left_out_on_request(directory: Path) -> None:
    """Check that the API server calls the webhook only if the component `admission` is selected.

    Without it there is neither a webhook process nor its configuration.
    """
    up = run(directory, "up", "--nodes", "1", "--wings", "maintenance,certificates")
    names = [record.name for record in state_directory.records(directory)]
    configured = kubectl(directory, "get", "validatingwebhookconfigurations,validatingadmissionpolicies", "-o", "name")
    down = run(directory, "down")

    assert (up.returncode, down.returncode) == (0, 0)
    assert "validate" not in names
    assert "nodemaintenance" not in configured


def test_a_killed_supervisor_takes_all_with_it(directory: Path) -> None:
    """Check that all servers end with a killed supervisor, including restarted ones, and that `up` works again.

    `down` also works if the directory of the running cluster was deleted.
    """
    assert run(directory, "up", "--nodes", "1").returncode == 0
    killed = record_of(directory, "delivery").pid
    os.kill(killed, signal.SIGKILL)
    await_ready("the restart", lambda: record_of(directory, "delivery").restarts == 1, [])

    groups = state_directory.groups(directory)
    assert killed not in groups
    assert living(groups) == groups
    os.kill(state_directory.supervisor_pid(directory), signal.SIGKILL)

    down = run(directory, "down")
    assert down.returncode == 0
    assert not state_directory.running(directory)
    assert soon(lambda: living(groups) == [])
    assert run(directory, "up", "--nodes", "1").returncode == 0
    ends_without_its_folder(directory)


def ends_without_its_folder(directory: Path) -> None:
    """Delete the whole directory, and check that `down` still stops everything."""
    groups, supervisor = state_directory.groups(directory), state_directory.supervisor_pid(directory)
    while directory.exists():  # the servers keep writing to it
        shutil.rmtree(directory, ignore_errors=True)

    down = run(directory, "down")

    assert (down.returncode, down.stdout) == (0, "down\n")
    assert soon(lambda: living([*groups, supervisor]) == [])


def test_ctrl_c_while_starting_ends_what_was_started(directory: Path) -> None:
    """Check that Ctrl-C during `up` stops the servers that were already started."""
    with subprocess.Popen(command(directory, "up"), cwd=ROOT, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        assert any("starting etcd" in line for line in up.stdout)
        up.send_signal(signal.SIGINT)
        up.stdout.read()

    assert up.returncode != 0
    assert soon(lambda: not state_directory.running(directory))


def test_an_unknown_delivery_is_refused(directory: Path) -> None:
    """Check that an unknown delivery is rejected with one line that lists the known ones, before anything starts."""
    refused = run(directory, "up", "--delivery", "pigeon")

    assert refused.returncode == 1
    assert refused.stderr == "error: DELIVERY=pigeon is not known; allowed: local, knative, rabbitmq\n"
    assert not directory.exists()


def test_down_and_status_without_a_cluster_are_no_errors(directory: Path) -> None:
    """Check that `down` and `status` succeed without a cluster, also with a stale pid file."""
    directory.mkdir()
    (directory / state_directory.PID_FILE).write_text("1")

    assert (run(directory, "down").stdout, run(directory, "down").returncode) == ("not up: nothing to do\n", 0)
    assert (run(directory, "status").stdout, run(directory, "status").returncode) == (
        "not up; `make up` starts it\n",
        0,
    )


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    """Check that an impossible directory is reported as one line with the system's error and the path."""
    (tmp_path / "file").touch()

    done = run(tmp_path / "file" / "up", "status")

    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr == f"error: [Errno 20] Not a directory: '{tmp_path}/file/up/{state_directory.PID_FILE}'\n"


def test_control_plane_nodes_leave_room_for_pods(directory: Path) -> None:
    """Check that at least one node must remain a worker; otherwise `up` fails before anything starts."""
    up = run(directory, "up", "--nodes", "3", "--control-planes", "3")

    assert (up.returncode, up.stdout) == (1, "")
    assert up.stderr == "error: CONTROL_PLANES=3 leaves none of NODES=3 for pods: raise NODES\n"
    assert not state_directory.running(directory)


def test_down_ends_a_start_that_is_under_way(directory: Path) -> None:
    """Check that `down` stops a cluster that is still starting, so that `up` fails."""
    with subprocess.Popen(command(directory, "up"), cwd=ROOT, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        assert up.stdout.readline() == "starting a cluster: NODES=3 DELIVERY=local\n"
        await_ready("the supervisor", lambda: bool(state_directory.supervisors(directory)), [])
        down = run(directory, "down")
        up.stdout.read()

    assert (down.returncode, down.stdout) == (0, "down\n")
    assert up.returncode != 0
    assert not state_directory.running(directory)


def as_nobody(deed: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with a directory as an unprivileged user."""
    words = [sys.executable, "-c", AS_NOBODY.format(deed=deed), str(directory)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_down_on_another_users_files_is_one_line(directory: Path) -> None:
    """Check that `down` reports another user's files and removes nothing."""
    directory.mkdir()
    (directory / state_directory.READY_FILE).write_text("left")
    directory.chmod(0o555)

    done = as_nobody("down.down", directory)
    directory.chmod(0o755)

    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {directory} is another user's cluster, whose `make down` ends it: ")
    assert (directory / state_directory.READY_FILE).exists()


def test_a_supervisor_that_has_no_lock_yet_is_not_gone(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that a starting supervisor without the lock is found by its command line.

    The directory may contain the pid of a dead one.
    """
    directory.mkdir()
    (directory / state_directory.PID_FILE).write_text("0")
    (directory / "starting.py").write_text("print(flush=True); input()")
    words = [sys.executable, str(directory / "starting.py"), "localcluster", "supervise", str(directory)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starting:
        assert starting.stdout is not None
        starting.stdout.readline()
        status.status(directory)
        starting.communicate("\n")

    assert capsys.readouterr().out == f"starting or ending, supervisor {starting.pid}, logs in {directory}/\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="nobody else can make what is root's")
def test_what_root_s_cluster_left_is_named_with_its_remedy() -> None:
    """Check that files that root's cluster left are named together with the command that removes them.

    Otherwise the start would only report that the directory is not empty.
    """
    with tempfile.TemporaryDirectory(prefix="left-") as shared:  # only their owner can access pytest's directories
        left = Path(shared) / state_directory.SERVERS
        (left / "etcd").mkdir(parents=True)
        left.chmod(0o555)
        Path(shared).chmod(0o755)

        done = as_nobody("folder.clear", Path(shared))
        Path(shared).chmod(0o555)  # everything belongs to root, as after a first cluster
        all_of_it = as_nobody(SUPERVISE, Path(shared))
        Path(shared).chmod(0o755)
        left.chmod(0o755)

    assert all_of_it.stderr.startswith(f"error: {shared} is another user's: [Errno 13] ")
    assert all_of_it.stderr.endswith(f"; `sudo rm -rf {shared}` takes it away\n")
    assert done.stderr == f"error: {left} is left of another user's cluster: `sudo rm -rf {left}` takes it away\n"


@pytest.mark.parametrize("closed", ["", state_directory.SERVERS], ids=["the folder", "what an earlier cluster left"])
def test_what_is_one_s_own_is_not_another_user_s(closed: str) -> None:
    """Check that a permission error for the user's own files is reported as it is, without a `sudo` command."""
    with tempfile.TemporaryDirectory(prefix="own-") as home:
        within = Path(home) / state_directory.SERVERS / "etcd"
        within.mkdir(parents=True)
        if os.geteuid() == 0:
            for place in (Path(home), within.parent, within):
                os.chown(place, 65534, -1)
        (Path(home) / closed).chmod(0o555)

        done = as_nobody(SUPERVISE, Path(home))
        (Path(home) / closed).chmod(0o755)

    assert done.stderr.startswith("error: [Errno 13] Permission denied: ")
    assert "sudo" not in done.stderr


def test_a_file_elsewhere_is_no_other_user_s_cluster(directory: Path) -> None:
    """Check that a permission error outside of the directory is raised unchanged and names its file."""
    directory.mkdir()

    with pytest.raises(PermissionError, match="kwok"), state_directory.owned(directory):
        raise PermissionError(errno.EACCES, "Permission denied", "/bin/kwok")


@pytest.mark.parametrize(
    "other",
    [Wish(nodes=5), Wish(control_planes=1), Wish(delivery="rabbitmq"), Wish(wings=("maintenance",)), Wish(real=2)],
)
def test_a_cluster_that_is_up_is_not_taken_for_another_one(directory: Path, other: Wish) -> None:
    """Check that `up` with other options fails if a cluster is running, and changes nothing."""
    directory.mkdir()
    (directory / state_directory.READY_FILE).write_text(state_directory.title(Wish()))

    with state_directory.locked(directory), pytest.raises(LocalClusterError) as refused:
        start.up(directory, other)

    assert str(refused.value) == "another cluster is up, with NODES=3 DELIVERY=local; `make down` ends it"


def test_an_up_that_builds_leaves_a_cluster_alone_that_came_up_meanwhile(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that `up` uses a cluster that another `up` started in the meantime, and reports it.

    The output of `make env` for that cluster is available.
    """
    directory.mkdir()
    wish, other = Wish(), ExitStack()
    printed = f"{state_directory.title(wish)}export KUBECONFIG=there\n"

    def other_comes_up(*_: object) -> None:
        other.enter_context(state_directory.locked(directory))
        (directory / state_directory.READY_FILE).write_text(printed)

    monkeypatch.setattr(type(delivery_engines.named(wish.delivery)), "build", other_comes_up)
    with other:
        start.up(directory, wish)

        assert capsys.readouterr().out.startswith("already up, with NODES=3 DELIVERY=local; ")
        assert state_directory.exports(directory) == "export KUBECONFIG=there\n"
