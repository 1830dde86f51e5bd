"""Builds the processes of the cluster's servers; `cluster` starts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster import access
from localcluster.nodes.identities import EtcdCertificate, KubeletClientCertificate
from localcluster.processes import Server

HERE = Path(__file__).parent
ROOT = HERE.parent
LOOPBACK = "127.0.0.1"
# A proxy in the environment is for external hosts, not for this host.
NO_PROXY_LOCAL_ENV = {"NO_PROXY": f"{LOOPBACK},localhost", "no_proxy": f"{LOOPBACK},localhost"}
# The API server must not use a proxy at all, because it also calls Services, pods and nodes by their local addresses.
NO_PROXY_ALL_ENV = {"NO_PROXY": "*", "no_proxy": "*"}
SERVICE_CIDR = "10.0.0.0/24"
POD_CIDR = "10.64.0.0/12"
# Fake nodes are never lost, so they need no Lease. If kwok is killed and restarted, a Lease would also prevent the new
# process from managing the node until the Lease expires.
FAKE_NODE_LEASE_SECONDS = 0
NODE_MONITOR_GRACE = "24h"
# A cluster with real nodes, which can be lost, needs Leases for all nodes: kwok and the kubelets renew them alike.
LEASE_SECONDS, REAL_NODE_MONITOR_GRACE = 40, "40s"
# Tests create and delete objects in bursts. The default client limits (20 to 50 requests per second) would delay them.
CLIENT_RATE_FLAGS = ("--kube-api-qps=500", "--kube-api-burst=1000")


class ServerFactory:
    """Builds the processes of one cluster's servers, each with its command line and log file.

    Args:
        programs: The directory of the built binaries.
        directory: The cluster's directory.
        ports: The port of each server.
        audit_enabled: Whether the API server must write an audit log.
        apiserver_flags: Additional flags of the API server.
        has_real_nodes: Whether the cluster has real nodes besides kwok's fake nodes.
    """

    def __init__(
        self,
        programs: Path,
        directory: Path,
        ports: Mapping[str, int],
        audit_enabled: bool,
        apiserver_flags: Sequence[str] = (),
        has_real_nodes: bool = False,
    ) -> None:
        self.programs = programs
        self.directory = directory
        self.ports = ports
        self.audit_enabled = audit_enabled
        self.apiserver_flags = tuple(apiserver_flags)
        self.has_real_nodes = has_real_nodes
        """Whether the cluster has real nodes besides kwok's fake nodes."""
        self.certificate_file = directory / "pki" / "apiserver.crt"
        self.key_file = directory / "pki" / "apiserver.key"
        self.service_account_key_file = directory / "pki" / "service-account.key"
        self.tokens_file = directory / "pki" / "tokens.csv"
        self.audit_log = directory / "audit.log"

    def _build_server(self, program: str, *arguments: str, env: Mapping[str, str] | None = None) -> Server:
        return Server(program, [self.programs / program, *arguments], self.directory / f"{program}.log", env)

    def build_etcd(self) -> Server:
        """Build etcd's process: one member, without fsync, because the data is not needed after a crash."""
        client, peer = (self._build_etcd_url(name) for name in ("etcd", "etcd-peer"))
        return self._build_server(
            "etcd",
            "--name=local",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=local={peer}",
            "--unsafe-no-fsync",
            # Both intervals are in milliseconds. A single member has no followers to keep alive, and each heartbeat
            # costs CPU time. The member elects itself after one heartbeat interval.
            "--heartbeat-interval=100",
            "--election-timeout=500",
            "--log-level=warn",
            *(EtcdCertificate(self.certificate_file.parent).build_server_flags() if self.has_real_nodes else ()),
        )

    def _build_etcd_url(self, port_name: str) -> str:
        return f"{'https' if self.has_real_nodes else 'http'}://{LOOPBACK}:{self.ports[port_name]}"

    def build_apiserver(self) -> Server:
        """Build kube-apiserver's process, with RBAC, static tokens and, if enabled, an audit log."""
        return self._build_server(
            "kube-apiserver",
            f"--etcd-servers={self._build_etcd_url('etcd')}",
            *(EtcdCertificate(self.certificate_file.parent).build_client_flags() if self.has_real_nodes else ()),
            f"--bind-address={LOOPBACK}",
            f"--advertise-address={LOOPBACK}",
            "--endpoint-reconciler-type=none",  # The endpoint reconciler rejects a loopback address.
            f"--secure-port={self.ports['kube-apiserver']}",
            f"--tls-cert-file={self.certificate_file}",
            f"--tls-private-key-file={self.key_file}",
            f"--service-account-key-file={self.service_account_key_file}",
            f"--service-account-signing-key-file={self.service_account_key_file}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICE_CIDR}",
            f"--token-auth-file={self.tokens_file}",
            *(
                KubeletClientCertificate(self.certificate_file.parent).build_apiserver_flags()
                if self.has_real_nodes
                else ("--authorization-mode=RBAC",)
            ),
            # As on OpenShift, setting a blocking owner reference requires the permission to delete the owner.
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
            "--allow-privileged=true",
            "--profiling=false",
            *(self._build_audit_flags() if self.audit_enabled else ()),
            *self.apiserver_flags,
            env=NO_PROXY_ALL_ENV,
        )

    def _build_audit_flags(self) -> tuple[str, ...]:
        return (
            f"--audit-policy-file={HERE / 'audit-policy.yaml'}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-mode=blocking",  # The API server writes each line before it responds.
            "--audit-log-maxsize=2000",  # In MB; large enough that the log is never rotated.
        )

    def build_controller_manager(self) -> Server:
        """Build kube-controller-manager's process, with two controllers disabled.

        The taint eviction controller would itself evict pods from tainted nodes. The TTL controller writes to each node
        an annotation that only kubelets use.
        """
        return self._build_server(
            "kube-controller-manager",
            *self._build_client_flags("kube-controller-manager", access.CONTROLLER_MANAGER),
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.service_account_key_file}",
            f"--root-ca-file={self.certificate_file}",
            "--controllers=*,-taint-eviction-controller,-ttl-controller",
            f"--node-monitor-grace-period={REAL_NODE_MONITOR_GRACE if self.has_real_nodes else NODE_MONITOR_GRACE}",
            f"--flex-volume-plugin-dir={self.directory / 'flexvolume'}",  # The default directory is in /usr.
        )

    def build_scheduler(self) -> Server:
        """Build kube-scheduler's process."""
        return self._build_server("kube-scheduler", *self._build_client_flags("kube-scheduler", access.SCHEDULER))

    def _build_client_flags(self, program: str, user: str) -> tuple[str, ...]:
        return (
            f"--kubeconfig={self.get_kubeconfig_path(user)}",
            "--leader-elect=false",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={self.ports[program]}",
            f"--tls-cert-file={self.certificate_file}",
            f"--tls-private-key-file={self.key_file}",
            "--profiling=false",
            *CLIENT_RATE_FLAGS,
        )

    def build_kwok(self) -> Server:
        """Build the process of kwok, which acts as the kubelet of all fake nodes; it listens on no port."""
        stages = sorted((HERE / "stages").glob("*.yaml"))
        return self._build_server(
            "kwok",
            f"--kubeconfig={self.get_kubeconfig_path(access.KWOK)}",
            *(f"--config={file}" for file in (HERE / "kwok.yaml", *stages)),
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--node-lease-duration-seconds={LEASE_SECONDS if self.has_real_nodes else FAKE_NODE_LEASE_SECONDS}",
            f"--cidr={POD_CIDR}",
        )

    def get_kubeconfig_path(self, user: str) -> Path:
        """Return the path of a user's kubeconfig file."""
        return self.directory / "users" / f"{user.replace(':', '_')}.kubeconfig"
