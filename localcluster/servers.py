"""The command line of each server; `cluster` starts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster import access
from localcluster.nodes.identities import Caller, Etcd
from localcluster.processes import Server

HERE = Path(__file__).parent
ROOT = HERE.parent
LOOPBACK = "127.0.0.1"
# A proxy from the environment is for the world outside, not for this machine.
DIRECT = {"NO_PROXY": f"{LOOPBACK},localhost", "no_proxy": f"{LOOPBACK},localhost"}
# The API server asks none at all: the names and addresses of Services, pods and nodes are of this machine, too.
UNPROXIED = {"NO_PROXY": "*", "no_proxy": "*"}
SERVICE_CIDR = "10.0.0.0/24"
POD_CIDR = "10.64.0.0/12"
# Nobody waits for a fake node to be lost, so its kubelet needs no lease. A lease would outlive a kwok that is killed,
# and the next one would not play kubelet for the node until it has expired.
NO_LEASE = 0
NODE_GRACE = "24h"
# Beside real nodes, which can be lost, the fake ones have leases as these have.
LEASE, REAL_GRACE = 40, "40s"
# Tests create and delete in bursts; with the defaults (20 to 50 requests a second) the servers would hold them up.
CLIENT_RATE = ("--kube-api-qps=500", "--kube-api-burst=1000")


class CommandLines:
    """Knows one cluster's folder, programs and ports, and says how each server is started."""

    def __init__(
        self,
        programs: Path,
        directory: Path,
        ports: Mapping[str, int],
        audit: bool,
        extra: Sequence[str] = (),
        real: bool = False,
    ) -> None:
        self.programs = programs
        self.directory = directory
        self.ports = ports
        self.audit = audit
        self.extra = tuple(extra)
        self.real = real
        """Whether there are real nodes beside those of kwok."""
        self.certificate = directory / "pki" / "apiserver.crt"
        self.certificate_key = directory / "pki" / "apiserver.key"
        self.signing_key = directory / "pki" / "service-account.key"
        self.tokens = directory / "pki" / "tokens.csv"
        self.audit_log = directory / "audit.log"

    def _server(self, program: str, *arguments: str, env: Mapping[str, str] | None = None) -> Server:
        return Server(program, [self.programs / program, *arguments], self.directory / f"{program}.log", env)

    def etcd(self) -> Server:
        """Say how etcd is started: one member, no waiting for the disk, since nobody needs the data after a crash."""
        client, peer = (self._etcd_url(name) for name in ("etcd", "etcd-peer"))
        return self._server(
            "etcd",
            "--name=local",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=local={peer}",
            "--unsafe-no-fsync",
            # A member alone has nobody to be late for. It elects itself after a heartbeat, in milliseconds; each costs.
            "--heartbeat-interval=100",
            "--election-timeout=500",
            "--log-level=warn",
            *(Etcd(self.certificate.parent).server_flags() if self.real else ()),
        )

    def _etcd_url(self, port: str) -> str:
        return f"{'https' if self.real else 'http'}://{LOOPBACK}:{self.ports[port]}"

    def apiserver(self) -> Server:
        """Say how kube-apiserver is started: RBAC on, static tokens."""
        return self._server(
            "kube-apiserver",
            f"--etcd-servers={self._etcd_url('etcd')}",
            *(Etcd(self.certificate.parent).client_flags() if self.real else ()),
            f"--bind-address={LOOPBACK}",
            f"--advertise-address={LOOPBACK}",
            "--endpoint-reconciler-type=none",  # a loopback address is refused as an endpoint
            f"--secure-port={self.ports['kube-apiserver']}",
            f"--tls-cert-file={self.certificate}",
            f"--tls-private-key-file={self.certificate_key}",
            f"--service-account-key-file={self.signing_key}",
            f"--service-account-signing-key-file={self.signing_key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICE_CIDR}",
            f"--token-auth-file={self.tokens}",
            *(Caller(self.certificate.parent).flags() if self.real else ("--authorization-mode=RBAC",)),
            # On OpenShift it is on by default: whoever sets an owner must be allowed to delete what is owned.
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
            "--allow-privileged=true",
            "--profiling=false",
            *(self._audit_flags() if self.audit else ()),
            *self.extra,
            env=UNPROXIED,
        )

    def _audit_flags(self) -> tuple[str, ...]:
        return (
            f"--audit-policy-file={HERE / 'audit-policy.yaml'}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-mode=blocking",  # a line is in the file before the answer is out
            "--audit-log-maxsize=2000",  # MB: one file for the whole life of a cluster
        )

    def controller_manager(self) -> Server:
        """Say how kube-controller-manager is started: all controllers but the one that evicts by itself.

        And the one that tells kubelets, of which there are none, for how long to keep Secrets: it writes to each node.
        """
        return self._server(
            "kube-controller-manager",
            *self._client_of_apiserver("kube-controller-manager", access.CONTROLLER_MANAGER),
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.signing_key}",
            f"--root-ca-file={self.certificate}",
            "--controllers=*,-taint-eviction-controller,-ttl-controller",
            f"--node-monitor-grace-period={REAL_GRACE if self.real else NODE_GRACE}",
            f"--flex-volume-plugin-dir={self.directory / 'flexvolume'}",  # it is created, by default in /usr
        )

    def scheduler(self) -> Server:
        """Say how kube-scheduler is started."""
        return self._server("kube-scheduler", *self._client_of_apiserver("kube-scheduler", access.SCHEDULER))

    def _client_of_apiserver(self, program: str, user: str) -> tuple[str, ...]:
        return (
            f"--kubeconfig={self.kubeconfig(user)}",
            "--leader-elect=false",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={self.ports[program]}",
            f"--tls-cert-file={self.certificate}",
            f"--tls-private-key-file={self.certificate_key}",
            "--profiling=false",
            *CLIENT_RATE,
        )

    def kwok(self) -> Server:
        """Say how kwok, the fake kubelet of all nodes, is started: it serves no port."""
        stages = sorted((HERE / "stages").glob("*.yaml"))
        return self._server(
            "kwok",
            f"--kubeconfig={self.kubeconfig(access.KWOK)}",
            *(f"--config={file}" for file in (HERE / "kwok.yaml", *stages)),
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--node-lease-duration-seconds={LEASE if self.real else NO_LEASE}",
            f"--cidr={POD_CIDR}",
        )

    def kubeconfig(self, user: str) -> Path:
        """Give the path of a user's kubeconfig file."""
        return self.directory / "users" / f"{user.replace(':', '_')}.kubeconfig"
