"""Runs several `evict` processes with a load balancer, as a Service would; only with the engine `knative`.

With this engine, the Trigger of `evict` contains the URL of the function's process, and Knative applies a new URL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.rig import Rig
from bench.workload import wait_until
from kube.client.sync_client import SyncClient
from localcluster.access import NAMESPACE
from localcluster.processes import Server, reserve_port, wait_until_ready
from localcluster.programs.packages import find_program
from localcluster.readiness import is_ready
from localcluster.servers import LOOPBACK, ROOT

FUNCTION, TRIGGER = "evict", "evict-on-more"
TRIGGERS_PATH = f"/apis/eventing.knative.dev/v1/namespaces/{NAMESPACE}/triggers"
BALANCER_CONFIG = """daemon off; master_process off; pid {folder}/balancer.pid; error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxied;
  fastcgi_temp_path {folder}/unused; uwsgi_temp_path {folder}/unused; scgi_temp_path {folder}/unused;
  upstream processes {{ {servers} keepalive 64; }}
  server {{
    listen {address}; keepalive_timeout 300; keepalive_requests 1000000;
    location / {{ proxy_pass http://processes; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


@contextmanager
def run_evict_processes(rig: Rig, count: int) -> Iterator[None]:
    """Distribute the events of `evict` among `count` processes, including the existing one, during the `with` block."""
    if count == 1:
        yield
        return
    with ExitStack() as stack:
        existing_address = _read_environment(rig.processes[FUNCTION])["BIND"]
        new_addresses = [f"{LOOPBACK}:{reserve_port()}" for _ in range(count - 1)]
        for address in new_addresses:
            _start_server(stack, _build_server_copy(rig, address), address)
        balancer_address = f"{LOOPBACK}:{reserve_port()}"
        _start_server(
            stack,
            _build_balancer(rig.directory / "balancer", balancer_address, [existing_address, *new_addresses]),
            balancer_address,
        )
        stack.callback(_set_subscriber, rig.client, existing_address)
        _set_subscriber(rig.client, balancer_address)
        yield


def _start_server(stack: ExitStack, server: Server, address: str) -> None:
    stack.callback(server.kill)
    server.start()
    wait_until_ready(server.name, lambda: is_ready(f"http://{address}"), [server])


def _build_server_copy(rig: Rig, address: str) -> Server:
    """Build a copy of the running `evict` process's server, with the same command and environment, at `address`."""
    pid = rig.processes[FUNCTION]
    command = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    environment = {**_read_environment(pid), "BIND": address}
    return Server(f"{FUNCTION} at {address}", command, rig.directory / f"{FUNCTION}-{address}.log", environment, ROOT)


def _read_environment(pid: int) -> dict[str, str]:
    variables = Path(f"/proc/{pid}/environ").read_text().rstrip("\0").split("\0")
    return {name: value for name, _, value in (variable.partition("=") for variable in variables)}


def _build_balancer(directory: Path, listen_address: str, backend_addresses: list[str]) -> Server:
    directory.mkdir()
    file = directory / "nginx.conf"
    servers = " ".join(f"server {address};" for address in backend_addresses)
    file.write_text(BALANCER_CONFIG.format(folder=directory, servers=servers, address=listen_address))
    command: list[str | Path] = [find_program("nginx"), "-p", directory, "-e", "stderr", "-c", file]
    return Server("balancer", command, directory / "nginx.log")


def _set_subscriber(client: SyncClient, address: str) -> None:
    """Set the address of the Trigger's subscriber; return when Knative has applied the change."""
    url = f"http://{address}/"
    client.patch(f"{TRIGGERS_PATH}/{TRIGGER}", {"spec": {"subscriber": {"uri": url}}})
    wait_until(
        client, TRIGGERS_PATH, lambda triggers: (triggers[TRIGGER].get("status") or {}).get("subscriberUri") == url
    )
