"""The supervisor process of `make up`: starts the servers, restarts servers that exit, and stops them when it exits."""

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
from localcluster.components.fakes import Fakes
from localcluster.components.selection import ADMISSION, FAKES_OFF, MUTEX, VIRTUALIZATION
from localcluster.product import list_trigger_and_source_manifests
from localcluster.programs import build
from localcluster.up import state_directory
from localcluster.up.restarter import ProcessRecord, Restarter
from localcluster.up.state_directory import ClusterSpec
from localcluster.web_console import WebConsole

if TYPE_CHECKING:
    from localcluster.nodes.real_nodes import RealNodes

NEXT_STEPS_WITH_FAKES = {
    MUTEX: '      upgrade the workers node by node: see "Try it" in docs/mutex.md\n',
    VIRTUALIZATION: '      move virtual machines by a drain: see "Try it" in docs/virtualization.md\n',
}
"""For each component, the next step that is suggested to the user if the component's fakes run."""


def supervise(directory: Path, spec: ClusterSpec) -> None:
    """Run the supervisor: start all servers, print the progress, restart servers that exit, and stop all on SIGTERM.

    Raises `LocalClusterError`, for example if the directory belongs to another user, or `OSError`.
    """
    with state_directory.explain_permission_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        with state_directory.hold_lock(directory) as lock:
            processes.inherited_fds.append(lock)
            signal.signal(signal.SIGTERM, _handle_sigterm)
            with contextlib.suppress(_Terminated):
                _run_cluster(directory.resolve(), spec)


def _run_cluster(directory: Path, spec: ClusterSpec) -> None:
    state_directory.remove_previous_cluster(directory)
    engine = delivery_engines.get_engine(spec.engine)
    print_progress = _build_progress_printer()
    cluster = engine.create_cluster(directory / state_directory.SERVERS_DIR, spec.nodes, spec.real_nodes)
    print_progress(
        "the servers are built; starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok"
    )
    with cluster, Restarter(_RecordWriter(directory)) as restarter:
        restarter.add_servers(cluster.servers)
        cluster.mark_control_plane_nodes(spec.control_planes)
        print_progress(f"the cluster is ready: {spec.nodes} nodes at {cluster.url}")
        access.write_secret(directory / state_directory.KUBECONFIG_FILE, cluster.kubeconfig.read_text())
        if spec.real_nodes:
            print_progress(
                f"starting {spec.real_nodes} real nodes with containerd, kubelet and kube-proxy, and CoreDNS in pods"
            )
        with _build_real_nodes(cluster, directory / state_directory.IMAGES_DIR, spec, engine) as real_nodes:
            if engine.addons:
                print_progress("the real nodes are Ready, and Knative runs in pods; installing the product")
            with (
                engine.install_product(cluster, directory / "product", spec.components) as product,
                _build_console(cluster, directory / "product", product) as console,
                _build_webhook(cluster, directory / "product", spec, engine) as webhook,
                _build_fakes(cluster, directory / "product", spec) as fakes,
            ):
                restarter.add_servers([*product.servers, console.server])
                restarter.add_servers([*([webhook.server] if webhook else []), *(fakes.servers if fakes else [])])
                if real_nodes:
                    restarter.add_servers(real_nodes.servers)
                if real_nodes and not engine.addons:
                    real_nodes.wait_until_ready()
                    print_progress(f"the real nodes are Ready: {', '.join(node.name for node in real_nodes.nodes)}")
                admission, simulators = ", admission webhook" if webhook else "", ", simulators" if fakes else ""
                print_progress(f"functions, delivery{admission}{simulators} and console are ready")
                _print_next_steps(directory, spec, product, console)
                while True:
                    signal.pause()


def _build_real_nodes(
    cluster: LocalCluster, directory: Path, spec: ClusterSpec, engine: delivery_engines.Engine
) -> AbstractContextManager[RealNodes | None]:
    """Return the requested real nodes, not started yet, or `nullcontext()` if none are requested.

    If the engine has add-ons, entering the context waits until the nodes and the add-ons are ready, because the product
    runs on the nodes. Otherwise the product starts while the nodes become Ready.
    """
    if not spec.real_nodes:
        return nullcontext()
    if engine.addons:
        from localcluster.knative.pod_install import start_real_nodes

        return start_real_nodes(cluster, spec.real_nodes, directory, engine.addons)
    from localcluster.nodes.real_nodes import RealNodes

    return RealNodes(cluster, spec.real_nodes)


def _build_progress_printer() -> Callable[[str], None]:
    """Return a function that prints a progress line with the seconds since `_build_progress_printer` was called."""
    started = time.monotonic()

    def print_progress(text: str) -> None:
        print(f"{time.monotonic() - started:5.1f} s  {text}", flush=True)

    return print_progress


class _RecordWriter:
    """Callback of `Restarter` that writes the process list after each change, and logs each exit and restart."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, ProcessRecord] = {}

    def __call__(self, records: list[ProcessRecord]) -> None:
        """Log the changes and write the records; a failed write, for example on a full disk, is only logged."""
        with contextlib.suppress(OSError):
            self._log_changes(records)
        try:
            state_directory.write_records(self._directory, records)
        except OSError as error:  # The directory may have been deleted; the servers run without the file.
            with contextlib.suppress(OSError):
                print(f"{time.ctime()}  cannot write the list of processes: {error}", flush=True)

    def _log_changes(self, records: list[ProcessRecord]) -> None:
        for record in records:
            before = self._known.get(record.name, record)
            if record.restart_at is not None and record.exited_at != before.exited_at:
                backoff = record.restart_at - record.exited_at
                print(f"{time.ctime()}  {record.name}: {record.exit_reason}; restarting in {backoff:.0f} s")
            if record.restarts != before.restarts:
                print(f"{time.ctime()}  {record.name}: restarted as process {record.pid}", flush=True)
            self._known[record.name] = record


def _build_console(cluster: LocalCluster, directory: Path, product: delivery_engines.RunningProduct) -> WebConsole:
    urls = {"functions_url": product.functions_url, "broker_url": product.broker_url}
    return WebConsole(cluster, directory, "--journal", product.journal, **urls)


def _build_webhook(
    cluster: LocalCluster, directory: Path, spec: ClusterSpec, engine: delivery_engines.Engine
) -> AbstractContextManager[Webhook | None]:
    """Return the admission webhook as a local process, or `nullcontext()` if it is disabled or runs in a pod."""
    return nullcontext() if ADMISSION not in spec.components or engine.addons else Webhook(cluster, directory)


def _build_fakes(cluster: LocalCluster, directory: Path, spec: ClusterSpec) -> AbstractContextManager[Fakes | None]:
    return nullcontext() if spec.fakes == FAKES_OFF else Fakes(cluster, directory, spec.components, spec.fakes)


class _Terminated(BaseException):
    """Raised by the handler of SIGTERM; no code catches it before the context managers have stopped everything."""


def _handle_sigterm(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Terminated


def _print_next_steps(
    directory: Path, spec: ClusterSpec, product: delivery_engines.RunningProduct, console: WebConsole
) -> None:
    """Print the next steps, mark the cluster as ready, and redirect the output to the log, which makes `up` return.

    The output sets FUNCTIONS and TRIGGERS even if they are empty, because the shell may still have values from a
    cluster with another engine.
    """
    programs = shlex.quote(f"{Path(sys.executable).parent}:{build.get_target_dir()}")
    journal = shlex.quote(str(product.journal.absolute()))
    trigger_files = list_trigger_and_source_manifests(spec.components) if product.functions_url else ()
    triggers = os.pathsep.join(map(str, trigger_files))
    with_fakes = spec.components if spec.fakes != FAKES_OFF else ()
    component_steps = (step for component, step in NEXT_STEPS_WITH_FAKES.items() if component in with_fakes)
    ready_output = state_directory.format_ready_title(spec) + (
        f"export KUBECONFIG={shlex.quote(str(directory / state_directory.KUBECONFIG_FILE))}\n"
        f'export PATH={programs}:"$PATH"\n'
        f"export JOURNAL={journal} FUNCTIONS={product.functions_url} BROKER={product.broker_url}\n"
        f"export TRIGGERS={shlex.quote(triggers)}\n"
        f"console: {console.url}\n"
        f"broker: {product.broker_url}\n"
        f"function cordon: {product.get_function_url('cordon')}\n"
        'set these variables in a shell: eval "$(make -s env)"\n'
        "next: kubectl maintenance start node-1 --reason trial; kubectl maintenance status --watch\n"
        f"{''.join(component_steps)}"
        "      make down\n"
    )
    print(ready_output, end="", flush=True)
    (directory / state_directory.READY_FILE).write_text(ready_output)
    with (directory / state_directory.LOG_FILE).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
