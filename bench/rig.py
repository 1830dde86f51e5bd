"""A cluster as `make up` starts it, console and journal included, in a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from bench.stopwatch import ROOT, Watching
from kube.door.sync_client import Cluster
from localcluster.up import folder
from localcluster.up.down import down
from localcluster.wings.choice import DEFAULT, MUTEX


@dataclass(frozen=True)
class Rig:
    """What is up: its folder, a door to its API server, and the observer."""

    engine: str
    directory: Path
    cluster: Cluster
    watching: Watching

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.directory / folder.KUBECONFIG

    @property
    def processes(self) -> dict[str, int]:
        """Name → process id of all that `make up` started."""
        return {record.name: record.pid for record in folder.records(self.directory)}

    @property
    def journal(self) -> Path:
        """The journal's file."""
        return self.directory / "product" / "journal.db"


@contextmanager
def up(engine: str, nodes: int, directory: Path, *, upgrades: bool = False) -> Iterator[Rig]:
    """Give such a cluster while the block runs, with the mutex where it `upgrades`.

    Raises `subprocess.CalledProcessError` when it does not come up, `LocalClusterError` when it does not end.
    """
    try:
        wanted = ["--directory", str(directory), "--nodes", str(nodes), "--delivery", engine]
        if upgrades:
            wanted += ["--wings", ",".join((*DEFAULT, MUTEX)), "--actors", "on"]
        subprocess.run([sys.executable, "-m", "localcluster", "up", *wanted], cwd=ROOT, check=True, stdout=sys.stderr)
        kubeconfig = directory / folder.KUBECONFIG
        with closing(Cluster(str(kubeconfig))) as cluster, Watching(kubeconfig) as watching:
            yield Rig(engine, directory, cluster, watching)
    finally:
        with redirect_stdout(sys.stderr):  # the bench's tables go to the other one
            down(directory)
