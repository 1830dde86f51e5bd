"""`make up`: starts the supervisor as a separate process, and prints its output until the cluster is ready."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from localcluster import delivery_engines
from localcluster.components.selection import KUBEVIRT_ITSELF
from localcluster.errors import LocalClusterError
from localcluster.programs import build
from localcluster.up import state_directory
from localcluster.up.state_directory import ClusterSpec


def start_cluster(directory: Path, spec: ClusterSpec) -> None:
    """Start the supervisor; return when the cluster and the product are ready. If they already run, only print that."""
    engine = delivery_engines.get_engine(spec.engine)
    if engine.addons and not spec.real_nodes:
        raise LocalClusterError(f"DELIVERY={spec.engine} runs everything in pods, which need real nodes: add REAL=2")
    if _is_requested_cluster_running(directory, spec):
        return
    engine.check()
    engine.build(spec.components, bool(spec.real_nodes))  # Here, a progress display can use the terminal.
    if spec.fakes == KUBEVIRT_ITSELF:
        build.ensure_programs(build.KUBEVIRT)
    if _is_requested_cluster_running(directory, spec):  # Another `start_cluster` may have finished during the build.
        return
    state_directory.remove_ready_file(directory)
    command = [sys.executable, "-m", "localcluster", "supervise", str(directory.resolve()), spec.to_json()]
    quiet, pipe, both = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    child = subprocess.Popen(command, stdin=quiet, stdout=pipe, stderr=both, start_new_session=True, text=True)
    try:
        for line in child.stdout or ():  # The output ends when the supervisor redirects it to the log, or exits.
            print(line, end="", flush=True)
    except BaseException:
        child.terminate()
        child.wait()
        raise
    if not state_directory.read_ready_message(directory):
        child.wait()
        raise LocalClusterError("cluster not started: see the error above")


def _is_requested_cluster_running(directory: Path, spec: ClusterSpec) -> bool:
    """Return whether the requested cluster is already running; if it is, print the output of its start again.

    Raises `LocalClusterError` if a different cluster is running.
    """
    if not state_directory.is_running(directory):
        return False
    if not state_directory.find_supervisor_pid(directory):
        if state_directory.wait_for_exit(directory, state_directory.ORPHAN_TIMEOUT_SECONDS):
            return False
        raise LocalClusterError(state_directory.format_orphaned_error(directory))
    ready_output = state_directory.read_ready_message(directory)
    if not ready_output:
        raise LocalClusterError(
            f"another start in {directory} is in progress: wait for it, or stop it with `make down`"
        )
    title = ready_output.splitlines()[0].partition(":")[0]
    if title != spec.format_title():
        raise LocalClusterError(f"another cluster is running, with {title}: stop it with `make down`")
    print(f"already running, with {title}; stop it with `make down`\n{ready_output}", end="")
    return True
