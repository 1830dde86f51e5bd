"""A cluster as `make up` starts it, including console and journal, in its own directory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from bench.observer_process import ROOT, Watching
from kube.client.sync_client import Cluster
from localcluster.up import state_directory
from localcluster.up.down import down
from localcluster.components.selection import DEFAULT, MUTEX


@dataclass(frozen=True)
class Rig:
    """A running cluster: its directory, an API client, and the observer."""

    engine: str
    directory: Path
    cluster: Cluster
    watching: Watching

    @property
    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig."""
        return self.directory / state_directory.KUBECONFIG

    @property
    def processes(self) -> dict[str, int]:
        """Return the process id of each process that `make up` started, by name."""
        return {record.name: record.pid for record in state_directory.records(self.directory)}

    @property
    def journal(self) -> Path:
        """Return the journal's file."""
        return self.directory / "product" / "journal.db"


@contextmanager
def up(engine: str, nodes: int, directory: Path, *, upgrades: bool = False) -> Iterator[Rig]:
    """Start such a cluster and yield it while the block runs; `upgrades` adds the upgrade mutex.

    Raises `subprocess.CalledProcessError` if it does not start, and `LocalClusterError` if it does not stop.
    """
    try:
        wanted = ["--directory", str(directory), "--nodes", str(nodes), "--delivery", engine]
        if upgrades:
            wanted += ["--wings", ",".join((*DEFAULT, MUTEX)), "--actors", "on"]
        subprocess.run([sys.executable, "-m", "localcluster", "up", *wanted], cwd=ROOT, check=True, stdout=sys.stderr)
        kubeconfig = directory / state_directory.KUBECONFIG
        with closing(Cluster(str(kubeconfig))) as cluster, Watching(kubeconfig) as watching:
            yield Rig(engine, directory, cluster, watching)
    finally:
        with redirect_stdout(sys.stderr):  # stdout is for the benchmark's tables
            down(directory)
