"""Additional processes of `evict` with a load balancer in front of them all, as a Service is; only on Knative.

There the Trigger of `evict` names the address of its process, and Knative applies a change of that address.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.workload import until
from bench.rig import Rig
from kube.client.sync_client import Cluster
from localcluster.access import NAMESPACE
from localcluster.processes import Server, await_ready, free_port
from localcluster.programs.packages import find
from localcluster.readiness import is_ready
from localcluster.servers import LOOPBACK, ROOT

NAME, TRIGGER = "evict", "evict-on-more"
TRIGGERS = f"/apis/eventing.knative.dev/v1/namespaces/{NAMESPACE}/triggers"
BALANCER = """daemon off; master_process off; pid {folder}/balancer.pid; error_log stderr warn;
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
def evictors(rig: Rig, count: int) -> Iterator[None]:
    """Distribute the events of `evict` over `count` processes while the block runs, including the existing one."""
    if count == 1:
        yield
        return
    with ExitStack() as stack:
        own = _environment(rig.processes[NAME])["BIND"]
        others = [f"{LOOPBACK}:{free_port()}" for _ in range(count - 1)]
        for address in others:
            _start(stack, _another(rig, address), address)
        balancer = f"{LOOPBACK}:{free_port()}"
        _start(stack, _balancer(rig.directory / "balancer", balancer, [own, *others]), balancer)
        stack.callback(_call, rig.cluster, own)
        _call(rig.cluster, balancer)
        yield


def _start(stack: ExitStack, server: Server, address: str) -> None:
    stack.callback(server.kill)
    server.start()
    await_ready(server.name, lambda: is_ready(f"http://{address}"), [server])


def _another(rig: Rig, address: str) -> Server:
    """Return a server with the command and environment of the existing process, but another address."""
    pid = rig.processes[NAME]
    command = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    environment = {**_environment(pid), "BIND": address}
    return Server(f"{NAME} at {address}", command, rig.directory / f"{NAME}-{address}.log", environment, ROOT)


def _environment(pid: int) -> dict[str, str]:
    variables = Path(f"/proc/{pid}/environ").read_text().rstrip("\0").split("\0")
    return {name: value for name, _, value in (variable.partition("=") for variable in variables)}


def _balancer(folder: Path, address: str, processes: list[str]) -> Server:
    folder.mkdir()
    file = folder / "nginx.conf"
    servers = " ".join(f"server {each};" for each in processes)
    file.write_text(BALANCER.format(folder=folder, servers=servers, address=address))
    command: list[str | Path] = [find("nginx"), "-p", folder, "-e", "stderr", "-c", file]
    return Server("balancer", command, folder / "nginx.log")


def _call(cluster: Cluster, address: str) -> None:
    """Make the Trigger call this address; return when Knative has applied it."""
    url = f"http://{address}/"
    cluster.patch(f"{TRIGGERS}/{TRIGGER}", {"spec": {"subscriber": {"uri": url}}})
    until(cluster, TRIGGERS, lambda found: (found[TRIGGER].get("status") or {}).get("subscriberUri") == url)
