"""Starts a cluster for measurements, as `make up` does, with the web console and the journal, in its own directory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from bench.observer_process import ROOT, ObserverProcess
from kube.client.sync_client import SyncClient
from localcluster.components.selection import DEFAULT_COMPONENTS, MUTEX
from localcluster.delivery_engines import get_engine
from localcluster.up import state_directory
from localcluster.up.down import stop_cluster


@dataclass(frozen=True)
class Rig:
    """A running cluster, with its directory, an API client, and the observer."""

    engine: str
    directory: Path
    client: SyncClient
    observer: ObserverProcess

    @property
    def kubeconfig(self) -> Path:
        """Return the path of the administrator's kubeconfig."""
        return self.directory / state_directory.KUBECONFIG_FILE

    @property
    def processes(self) -> dict[str, int]:
        """Return the process ids of the processes that `make up` started, by the processes' names."""
        return {record.name: record.pid for record in state_directory.read_records(self.directory)}

    @property
    def journal(self) -> Path:
        """Return the path of the journal's database file."""
        return self.directory / "product" / "journal.db"


@contextmanager
def start_rig(engine: str, nodes: int, directory: Path, *, with_mutex: bool = False) -> Iterator[Rig]:
    """Start a cluster, and yield it during the `with` block; `with_mutex` adds the component `mutex`.

    Raises `subprocess.CalledProcessError` if the cluster does not start, and `LocalClusterError` if it does not stop.
    """
    try:
        arguments = ["--directory", str(directory), "--nodes", str(nodes), "--delivery", engine]
        if get_engine(engine).addons:  # An engine with add-ons runs the functions on real nodes.
            arguments += ["--real", "2"]
        if with_mutex:
            arguments += ["--components", ",".join((*DEFAULT_COMPONENTS, MUTEX)), "--simulators", "on"]
        subprocess.run(
            [sys.executable, "-m", "localcluster", "up", *arguments], cwd=ROOT, check=True, stdout=sys.stderr
        )
        kubeconfig = directory / state_directory.KUBECONFIG_FILE
        with closing(SyncClient(str(kubeconfig))) as client, ObserverProcess(kubeconfig) as observer:
            yield Rig(engine, directory, client, observer)
    finally:
        with redirect_stdout(sys.stderr):  # Standard output contains only the benchmark's tables.
            stop_cluster(directory)
