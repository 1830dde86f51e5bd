"""The process that stays after `make up`: it owns the servers, restarts those that exit, and stops all when it ends."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from localcluster import access, delivery_engines, processes
from localcluster.admission.webhook import Webhook
from localcluster.cluster import LocalCluster
from localcluster.product import flow
from localcluster.programs import build
from localcluster.up import state_directory
from localcluster.up.restarter import Keeper, Record
from localcluster.up.cluster_spec import Wish
from localcluster.web_console import Console
from localcluster.components.fakes import Actors
from localcluster.components.selection import ADMISSION, MUTEX, OFF, VIRTUALIZATION

if TYPE_CHECKING:
    from localcluster.nodes.real_nodes import RealNodes

TRIALS = {
    MUTEX: "      an upgrade of the workers, node by node: docs/mutex.md, Try it\n",
    VIRTUALIZATION: "      a drain that moves virtual machines: docs/virtualization.md, Try it\n",
}
"""For each component, the hint that is printed if its fakes run."""


def supervise(directory: Path, wish: Wish) -> None:
    """Run as the supervisor: start everything, print the progress, restart what exits, and stop everything on SIGTERM.

    Raises `LocalClusterError`, for example if the directory belongs to another user, and `OSError`.
    """
    with state_directory.owned(directory):
        directory.mkdir(parents=True, exist_ok=True)
        with state_directory.locked(directory) as lock:
            processes.inherited.append(lock)
            signal.signal(signal.SIGTERM, _end)
            with contextlib.suppress(_Ended):
                _run(directory.resolve(), wish)


def _run(directory: Path, wish: Wish) -> None:
    state_directory.clear(directory)
    engine = delivery_engines.named(wish.delivery)
    say = _clock()
    cluster = engine.cluster(directory / state_directory.SERVERS, wish.nodes, wish.real)
    say("the servers are built; starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok")
    with cluster, Keeper(_Noting(directory)) as keeper:
        keeper.keep(cluster.servers)
        cluster.make_control_plane(wish.control_planes)
        say(f"the cluster is ready: {wish.nodes} nodes at {cluster.url}")
        access.write_secret(directory / state_directory.KUBECONFIG, cluster.kubeconfig.read_text())
        if wish.real:
            say(f"starting {wish.real} real nodes: containerd, kubelet and kube-proxy of each, CoreDNS in pods")
        with (
            _real(cluster, wish) as real,
            engine.open(cluster, directory / "product", wish.wings) as product,
            _console(cluster, directory / "product", product) as console,
            Webhook(cluster, directory / "product") if ADMISSION in wish.wings else nullcontext() as webhook,
            _actors(cluster, directory / "product", wish) as actors,
        ):
            keeper.keep([*product.servers, console.server])
            keeper.keep([*([webhook.server] if webhook else []), *(actors.servers if actors else [])])
            if real:
                keeper.keep(real.servers)
                real.await_ready()
                say(f"the real nodes are Ready: {', '.join(node.name for node in real.nodes)}")
            admission, played = ", admission" if webhook else "", ", actors" if actors else ""
            say(f"functions, delivery{admission}{played} and console are ready")
            _announce(directory, wish, product, console)
            while True:
                signal.pause()


def _real(cluster: LocalCluster, wish: Wish) -> AbstractContextManager[RealNodes | None]:
    """Return the requested real nodes, not started; the product starts while they become Ready."""
    if not wish.real:
        return nullcontext()
    from localcluster.nodes.real_nodes import RealNodes

    return RealNodes(cluster, wish.real)


def _clock() -> Callable[[str], None]:
    """Return a function that prints a progress line with the seconds since this call."""
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:5.1f} s  {text}", flush=True)

    return say


class _Noting:
    """Writes the process list after each change, and logs each exit and restart."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, Record] = {}

    def __call__(self, records: list[Record]) -> None:
        """Write the records and log the changes; a failed write, for example on a full disk, is only logged."""
        with contextlib.suppress(OSError):
            self._log(records)
        try:
            state_directory.write_records(self._directory, records)
        except OSError as error:  # or the directory was deleted; the processes do not need it
            with contextlib.suppress(OSError):
                print(f"{time.ctime()}  the list of processes is not written: {error}", flush=True)

    def _log(self, records: list[Record]) -> None:
        for record in records:
            before = self._known.get(record.name, record)
            if record.due is not None and record.ended_at != before.ended_at:
                print(f"{time.ctime()}  {record.name}: {record.ended}, again in {record.due - record.ended_at:.0f} s")
            if record.restarts != before.restarts:
                print(f"{time.ctime()}  {record.name}: started again as process {record.pid}", flush=True)
            self._known[record.name] = record


def _console(cluster: LocalCluster, directory: Path, product: delivery_engines.Running) -> Console:
    where = {"functions": product.functions_url, "broker": product.broker_url}
    return Console(cluster, directory, "--journal", product.journal, **where)


def _actors(cluster: LocalCluster, directory: Path, wish: Wish) -> AbstractContextManager[Actors | None]:
    return nullcontext() if wish.actors == OFF else Actors(cluster, directory, wish.wings, wish.actors)


class _Ended(BaseException):
    """Raised at SIGTERM; it propagates through any code, and the context managers stop what was started."""


def _end(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Ended


def _announce(directory: Path, wish: Wish, product: delivery_engines.Running, console: Console) -> None:
    """Print the next steps, mark the cluster as ready, and redirect the output to the log, which makes `up` return.

    An empty FUNCTIONS, or an empty TRIGGERS if the cluster has the Triggers, is printed as well: the shell may still
    have the values of another engine.
    """
    programs = shlex.quote(f"{Path(sys.executable).parent}:{build.target()}")
    journal = shlex.quote(str(product.journal.absolute()))
    triggers = os.pathsep.join(map(str, flow(wish.wings))) if product.functions_url else ""
    hints = state_directory.title(wish) + (
        f"export KUBECONFIG={shlex.quote(str(directory / state_directory.KUBECONFIG))}\n"
        f'export PATH={programs}:"$PATH"\n'
        f"export JOURNAL={journal} FUNCTIONS={product.functions_url} BROKER={product.broker_url}\n"
        f"export TRIGGERS={shlex.quote(triggers)}\n"
        f"console: {console.url}\n"
        f"broker: {product.broker_url}\n"
        f"a function, cordon: {product.function_url('cordon')}\n"
        'these exports, in any shell here: eval "$(make -s env)"\n'
        "next: kubectl maintenance start node-1 --reason trial; kubectl maintenance status --watch\n"
        f"{''.join(trial for wing, trial in TRIALS.items() if wish.actors != OFF and wing in wish.wings)}"
        "      make down\n"
    )
    print(hints, end="", flush=True)
    (directory / state_directory.READY_FILE).write_text(hints)
    with (directory / state_directory.LOG_FILE).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
