"""Tests that a cluster of `make up` runs until it is stopped, and that it then stops completely."""

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
from localcluster.errors import LocalClusterError
from localcluster.processes import wait_until_ready
from localcluster.programs import build
from localcluster.up import start, state_directory, status
from localcluster.up.state_directory import ClusterSpec
from tests.localcluster.commands import (
    ROOT,
    build_command,
    get_process_record,
    list_running_process_groups,
    run_command,
    run_kubectl,
    wait_until,
)
from tests.proofs import proves

pytestmark = pytest.mark.slow

UNPRIVILEGED_SCRIPT = """
import os, sys
from pathlib import Path
from localcluster.up import down, state_directory, supervisor
from localcluster.up import state_directory
from localcluster.errors import LocalClusterError
if os.geteuid() == 0:
    os.seteuid(65534)
try:
    {command}(Path(sys.argv[1]))
except (LocalClusterError, OSError) as error:
    sys.exit(f"error: {{error}}")
"""
"""Python script that calls a function as an unprivileged user.

The script itself changes the user, because perhaps only root can read Python's files.
"""
SUPERVISE_EXPRESSION = "(lambda directory: supervisor.supervise(directory, state_directory.ClusterSpec()))"
TITLE = "NODES=2 CONTROL_PLANES=1 DELIVERY=local"
SERVER_COUNT = 9
"""Number of processes: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok, and four of the product.

The product's processes are functions, delivery, console and validate.
"""


def test_up_starts_and_down_stops_cluster(state_dir: Path) -> None:
    """Check that `make up` starts a cluster, that a second one reports it, and that `make down` stops all processes.

    `--control-planes` sets the number of nodes with the control-plane role. `make down` stops everything even if some
    files in the directory were deleted.
    """
    options = ("--nodes", "2", "--control-planes", "1")
    up_result = run_command(state_dir, "up", *options)
    groups = state_directory.list_process_groups(state_dir)
    kubectl = [
        str(build.ensure_programs() / "kubectl"),
        "--kubeconfig",
        str(state_dir / "kubeconfig"),
        "get",
        "nodes",
        "-o",
        "name",
    ]
    nodes = subprocess.run(kubectl, capture_output=True, text=True, check=True).stdout.split()
    role_option = ["-l", "node-role.kubernetes.io/control-plane"]
    control_plane = subprocess.run([*kubectl, *role_option], capture_output=True, text=True, check=True).stdout.split()
    second_result = run_command(state_dir, "up", *options)
    for name in (state_directory.PID_FILE, state_directory.PROCESSES_FILE, state_directory.KUBECONFIG_FILE):
        (state_dir / name).unlink()
    down_result = run_command(state_dir, "down")

    assert up_result.returncode == 0, up_result.stdout + up_result.stderr
    assert f"export KUBECONFIG={state_dir}/kubeconfig\n" in up_result.stdout
    assert len(groups) == SERVER_COUNT
    assert nodes == ["node/node-1", "node/node-2"]
    assert control_plane == ["node/node-1"]
    assert (second_result.returncode, second_result.stdout.splitlines()[0]) == (
        0,
        f"already running, with {TITLE}; stop it with `make down`",
    )
    assert (down_result.returncode, down_result.stdout) == (0, "down\n")
    assert not state_directory.is_running(state_dir)
    assert wait_until(lambda: list_running_process_groups(groups) == [])


@proves("NMO-18")
def test_webhook_is_not_installed_without_component_admission(state_dir: Path) -> None:
    """Check that the admission webhook is installed only if the component `admission` is selected.

    Without the component, there is neither a webhook process nor a ValidatingWebhookConfiguration.
    """
    up_result = run_command(state_dir, "up", "--nodes", "1", "--components", "maintenance,certificates")
    names = [record.name for record in state_directory.read_records(state_dir)]
    configurations = run_kubectl(
        state_dir, "get", "validatingwebhookconfigurations,validatingadmissionpolicies", "-o", "name"
    )
    down_result = run_command(state_dir, "down")

    assert (up_result.returncode, down_result.returncode) == (0, 0)
    assert "validate" not in names
    assert "nodemaintenance" not in configurations


def test_servers_exit_if_supervisor_is_killed(state_dir: Path) -> None:
    """Check that all servers, even restarted ones, exit if the supervisor is killed, and that `make up` works again.

    `make down` works even if the running cluster's directory was deleted.
    """
    assert run_command(state_dir, "up", "--nodes", "1").returncode == 0
    killed_pid = get_process_record(state_dir, "delivery").pid
    os.kill(killed_pid, signal.SIGKILL)
    wait_until_ready("the restart", lambda: get_process_record(state_dir, "delivery").restarts == 1, [])

    groups = state_directory.list_process_groups(state_dir)
    assert killed_pid not in groups
    assert list_running_process_groups(groups) == groups
    os.kill(state_directory.read_supervisor_pid(state_dir), signal.SIGKILL)

    down_result = run_command(state_dir, "down")
    assert down_result.returncode == 0
    assert not state_directory.is_running(state_dir)
    assert wait_until(lambda: list_running_process_groups(groups) == [])
    assert run_command(state_dir, "up", "--nodes", "1").returncode == 0
    check_down_without_directory(state_dir)


def check_down_without_directory(directory: Path) -> None:
    """Delete the whole directory, and check that `make down` still stops everything."""
    groups, supervisor = state_directory.list_process_groups(directory), state_directory.read_supervisor_pid(directory)
    while directory.exists():  # The servers still write to the directory.
        shutil.rmtree(directory, ignore_errors=True)

    down_result = run_command(directory, "down")

    assert (down_result.returncode, down_result.stdout) == (0, "down\n")
    assert wait_until(lambda: list_running_process_groups([*groups, supervisor]) == [])


def test_ctrl_c_during_start_stops_servers(state_dir: Path) -> None:
    """Check that Ctrl-C during `make up` stops all servers that have been started."""
    with subprocess.Popen(build_command(state_dir, "up"), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("starting etcd" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        process.stdout.read()

    assert process.returncode != 0
    assert wait_until(lambda: not state_directory.is_running(state_dir))


def test_unknown_delivery_option_is_rejected(state_dir: Path) -> None:
    """Check that an unknown delivery is rejected, with the list of supported values, before anything is started."""
    result = run_command(state_dir, "up", "--delivery", "pigeon")

    assert result.returncode == 1
    assert (
        result.stderr
        == "error: DELIVERY=pigeon: unsupported value: use one of local, knative, rabbitmq, pods, serving\n"
    )
    assert not state_dir.exists()


def test_down_and_status_succeed_without_cluster(state_dir: Path) -> None:
    """Check that `make down` and `make status` succeed without a cluster, even if a stale pid file exists."""
    state_dir.mkdir()
    (state_dir / state_directory.PID_FILE).write_text("1")

    assert (run_command(state_dir, "down").stdout, run_command(state_dir, "down").returncode) == (
        "no cluster is running\n",
        0,
    )
    assert (run_command(state_dir, "status").stdout, run_command(state_dir, "status").returncode) == (
        "no cluster is running: start one with `make up`\n",
        0,
    )


def test_error_about_invalid_directory_is_one_line(tmp_path: Path) -> None:
    """Check that the error about an invalid directory is one line with the system's error and the path."""
    (tmp_path / "file").touch()

    result = run_command(tmp_path / "file" / "up", "status")

    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert result.stderr == f"error: [Errno 20] Not a directory: '{tmp_path}/file/up/{state_directory.PID_FILE}'\n"


def test_up_fails_if_no_node_is_a_worker(state_dir: Path) -> None:
    """Check that `make up` fails before anything is started if no node would be a worker."""
    result = run_command(state_dir, "up", "--nodes", "3", "--control-planes", "3")

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "error: CONTROL_PLANES=3 leaves no worker node of NODES=3: increase NODES\n"
    assert not state_directory.is_running(state_dir)


def test_down_stops_starting_cluster(state_dir: Path) -> None:
    """Check that `make down` stops a cluster that is still starting, so that its `make up` fails."""
    with subprocess.Popen(build_command(state_dir, "up"), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "starting a cluster: NODES=3 DELIVERY=local\n"
        wait_until_ready("the supervisor", lambda: bool(state_directory.find_supervisor_pids(state_dir)), [])
        down_result = run_command(state_dir, "down")
        process.stdout.read()

    assert (down_result.returncode, down_result.stdout) == (0, "down\n")
    assert process.returncode != 0
    assert not state_directory.is_running(state_dir)


def run_unprivileged(function: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Call a function with this directory as an unprivileged user."""
    arguments = [sys.executable, "-c", UNPRIVILEGED_SCRIPT.format(command=function), str(directory)]
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_down_reports_files_of_another_user(state_dir: Path) -> None:
    """Check that `make down` reports files of another user, and removes nothing."""
    state_dir.mkdir()
    (state_dir / state_directory.READY_FILE).write_text("left")
    state_dir.chmod(0o555)

    result = run_unprivileged("down.stop_cluster", state_dir)
    state_dir.chmod(0o755)

    assert result.returncode == 1
    assert result.stderr.startswith(
        f"error: the cluster in {state_dir} belongs to another user, who must run `make down`: "
    )
    assert (state_dir / state_directory.READY_FILE).exists()


def test_starting_supervisor_is_found_before_it_holds_lock(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that a starting supervisor that does not hold the lock yet is found by its command line.

    The directory may still contain the pid of an earlier supervisor.
    """
    state_dir.mkdir()
    (state_dir / state_directory.PID_FILE).write_text("0")
    (state_dir / "starting.py").write_text("print(flush=True); input()")
    command = [sys.executable, str(state_dir / "starting.py"), "localcluster", "supervise", str(state_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starting_supervisor:
        assert starting_supervisor.stdout is not None
        starting_supervisor.stdout.readline()
        status.print_status(state_dir)
        starting_supervisor.communicate("\n")

    assert (
        capsys.readouterr().out == f"starting or stopping, supervisor {starting_supervisor.pid}, logs in {state_dir}/\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create files that belong to root")
def test_error_about_files_that_belong_to_root_names_remedy() -> None:
    """Check that the error about files of a cluster that root ran names these files and the command that removes them.

    Otherwise, the start would only report that the directory is not empty.
    """
    with tempfile.TemporaryDirectory(prefix="left-") as shared_dir:  # Other users cannot access pytest's directories.
        servers_dir = Path(shared_dir) / state_directory.SERVERS_DIR
        (servers_dir / "etcd").mkdir(parents=True)
        servers_dir.chmod(0o555)
        Path(shared_dir).chmod(0o755)

        result = run_unprivileged("state_directory.remove_previous_cluster", Path(shared_dir))
        Path(shared_dir).chmod(0o555)  # All files belong to root, as after root has run a cluster.
        supervise_result = run_unprivileged(SUPERVISE_EXPRESSION, Path(shared_dir))
        Path(shared_dir).chmod(0o755)
        servers_dir.chmod(0o755)

    assert supervise_result.stderr.startswith(f"error: directory {shared_dir} belongs to another user: [Errno 13] ")
    assert supervise_result.stderr.endswith(f"; remove it with `sudo rm -rf {shared_dir}`\n")
    assert (
        result.stderr
        == f"error: {servers_dir} is a leftover of another user's cluster: remove it with `sudo rm -rf {servers_dir}`\n"
    )


@pytest.mark.parametrize(
    "unwritable_dir", ["", state_directory.SERVERS_DIR], ids=["the directory", "the servers of an earlier cluster"]
)
def test_own_unwritable_files_are_not_attributed_to_another_user(unwritable_dir: str) -> None:
    """Check that a permission error for the user's own files is reported unchanged, without a `sudo` command."""
    with tempfile.TemporaryDirectory(prefix="own-") as directory:
        etcd_dir = Path(directory) / state_directory.SERVERS_DIR / "etcd"
        etcd_dir.mkdir(parents=True)
        if os.geteuid() == 0:
            for path in (Path(directory), etcd_dir.parent, etcd_dir):
                os.chown(path, 65534, -1)
        (Path(directory) / unwritable_dir).chmod(0o555)

        result = run_unprivileged(SUPERVISE_EXPRESSION, Path(directory))
        (Path(directory) / unwritable_dir).chmod(0o755)

    assert result.stderr.startswith("error: [Errno 13] Permission denied: ")
    assert "sudo" not in result.stderr


def test_permission_error_outside_directory_is_raised_unchanged(state_dir: Path) -> None:
    """Check that a permission error for a file outside of the directory is raised unchanged."""
    state_dir.mkdir()

    with pytest.raises(PermissionError, match="kwok"), state_directory.explain_permission_errors(state_dir):
        raise PermissionError(errno.EACCES, "Permission denied", "/bin/kwok")


@pytest.mark.parametrize(
    "other_spec",
    [
        ClusterSpec(nodes=5),
        ClusterSpec(control_planes=1),
        ClusterSpec(engine="rabbitmq"),
        ClusterSpec(components=("maintenance",)),
        ClusterSpec(real_nodes=2),
    ],
)
def test_up_with_different_options_fails_if_cluster_is_running(state_dir: Path, other_spec: ClusterSpec) -> None:
    """Check that `make up` with different options fails if a cluster is running, and changes nothing."""
    state_dir.mkdir()
    (state_dir / state_directory.READY_FILE).write_text(state_directory.format_ready_title(ClusterSpec()))

    with state_directory.hold_lock(state_dir), pytest.raises(LocalClusterError) as error:
        start.start_cluster(state_dir, other_spec)

    assert str(error.value) == "another cluster is running, with NODES=3 DELIVERY=local: stop it with `make down`"


def test_up_uses_cluster_that_concurrent_up_has_started(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that `make up` uses and reports a cluster that a concurrent `make up` has started.

    `make env` then prints the environment variables of that cluster.
    """
    state_dir.mkdir()
    spec, other_cluster = ClusterSpec(), ExitStack()
    ready_text = f"{state_directory.format_ready_title(spec)}export KUBECONFIG=there\n"

    def start_concurrent_cluster(*_: object) -> None:
        other_cluster.enter_context(state_directory.hold_lock(state_dir))
        (state_dir / state_directory.READY_FILE).write_text(ready_text)

    monkeypatch.setattr(type(delivery_engines.get_engine(spec.engine)), "build", start_concurrent_cluster)
    with other_cluster:
        start.start_cluster(state_dir, spec)

        assert capsys.readouterr().out.startswith("already running, with NODES=3 DELIVERY=local; ")
        assert state_directory.read_export_lines(state_dir) == "export KUBECONFIG=there\n"
