"""`make up`: starts the supervisor and prints its output until everything is ready.

The supervisor itself imports the modules that it needs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from localcluster import delivery_engines
from localcluster.programs import build
from localcluster.errors import LocalClusterError
from localcluster.up import state_directory
from localcluster.up.cluster_spec import Wish
from localcluster.components.selection import BESIDE


def up(directory: Path, wish: Wish) -> None:
    """Start the supervisor and return when everything is ready; print a notice if the cluster is already up."""
    engine = delivery_engines.named(wish.delivery)
    if _is_up(directory, wish):
        return
    engine.check()
    engine.build(wish.wings, bool(wish.real))  # built here, where a terminal can show the progress
    if wish.actors == BESIDE:
        build.servers(build.KUBEVIRT)
    if _is_up(directory, wish):  # the build takes minutes; another `up` may have finished
        return
    state_directory.unready(directory)
    command = [sys.executable, "-m", "localcluster", "supervise", str(directory.resolve()), wish.text()]
    quiet, pipe, both = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    child = subprocess.Popen(command, stdin=quiet, stdout=pipe, stderr=both, start_new_session=True, text=True)
    try:
        for line in child.stdout or ():  # ends when the supervisor redirects its output to the log, or exits
            print(line, end="", flush=True)
    except BaseException:
        child.terminate()
        child.wait()
        raise
    if not state_directory.hints(directory):
        child.wait()
        raise LocalClusterError("not started; the reason is above")


def _is_up(directory: Path, wish: Wish) -> bool:
    """Return whether the requested cluster is up, and print its output if so.

    Raises `LocalClusterError` if another cluster is up.
    """
    if not state_directory.running(directory):
        return False
    if not state_directory.supervisor(directory):
        if state_directory.await_end(directory, state_directory.ORPHAN_SECONDS):
            return False
        raise LocalClusterError(state_directory.orphaned(directory))
    hints = state_directory.hints(directory)
    if not hints:
        raise LocalClusterError(f"another start in {directory} is under way; wait for it, or end it with `make down`")
    there = hints.splitlines()[0].partition(":")[0]
    if there != wish.title():
        raise LocalClusterError(f"another cluster is up, with {there}; `make down` ends it")
    print(f"already up, with {there}; `make down` ends it\n{hints}", end="")
    return True
