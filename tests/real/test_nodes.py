"""Tests for pods on real nodes: networking, DNS, probes, tokens, logs and images."""

from __future__ import annotations

import pytest

from kube.paths import Object
from kube.pods import is_ready
from localcluster.cluster import FAKE_NODE_TAINT
from localcluster.nodes.node_config import CONTAINERD_SOCKET
from localcluster.nodes.real_nodes import COREDNS_IMAGE
from tests.real.environment import (
    PODS_PATH,
    WEB_SERVER_PROBE,
    WEB_SERVER_SCRIPT,
    RealNodesEnvironment,
    build_pod_spec,
    build_pods_ready_predicate,
)

pytestmark = pytest.mark.real


def test_pod_reaches_service_on_different_node(environment: RealNodesEnvironment) -> None:
    """Check that a pod reaches a Service on the other node by name, through CNI, kube-proxy and CoreDNS."""
    environment.create_pod("answers", "real-1", WEB_SERVER_SCRIPT.format(text="hello"), readinessProbe=WEB_SERVER_PROBE)
    environment.create_service("answers")
    environment.wait_for_pod("answers", is_ready)
    request_command = "until wget -q -O - http://{}/; do sleep 1; done; "
    script = "".join(map(request_command.format, ("answers", "answers.default.svc.cluster.local")))
    environment.create_pod("asks", "real-2", script, restartPolicy="Never")

    client_pod = environment.wait_for_pod("asks", lambda pod: pod["status"].get("phase") == "Succeeded")

    assert client_pod["spec"]["nodeName"] == "real-2"
    assert environment.read_log("asks").splitlines()[-2:] == ["hello", "hello"]


def test_probes_control_readiness_and_restart(environment: RealNodesEnvironment) -> None:
    """Check that readiness follows the readiness probe, and that a failed liveness probe restarts the container."""
    script = "touch alive; sleep 3; touch ready; sleep 4; rm -f ready alive; sleep 1000"
    probe = {"periodSeconds": 1, "failureThreshold": 1}
    probes = {
        "readinessProbe": {"exec": {"command": ["ls", "ready"]}, **probe},
        "livenessProbe": {"exec": {"command": ["ls", "alive"]}, **probe, "failureThreshold": 2},
    }
    environment.create_pod("probed", "real-1", script, **probes)

    started = environment.wait_for_pod("probed", lambda pod: pod["status"].get("phase") == "Running")
    environment.wait_for_pod("probed", is_ready)
    environment.wait_for_pod("probed", lambda pod: not is_ready(pod))
    restarted = environment.wait_for_pod(
        "probed", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 1
    )

    assert not is_ready(started)
    assert restarted["metadata"]["uid"] == started["metadata"]["uid"]


def test_api_server_accepts_token_of_pod(environment: RealNodesEnvironment) -> None:
    """Check that pods get a token, the CA and the namespace, and that the API server accepts the token."""
    folder = "/var/run/secrets/kubernetes.io/serviceaccount"
    script = "; echo; ".join(f"cat {folder}/{name}" for name in ("namespace", "token", "ca.crt"))
    environment.create_pod("known", "real-2", script, restartPolicy="Never")
    environment.wait_for_pod("known", lambda pod: pod["status"].get("phase") == "Succeeded")

    namespace, token, *trusted = environment.read_log("known").splitlines()
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    status = environment.client.create("/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]

    assert namespace == "default"
    assert status["user"]["username"] == "system:serviceaccount:default:default"
    assert status["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["known"]
    assert "\n".join(trusted).strip() == environment.cluster.certificate.strip()


def test_coredns_is_ready_on_both_nodes(environment: RealNodesEnvironment) -> None:
    """Check that CoreDNS is Ready on both nodes.

    CoreDNS becomes Ready once it has read all Services from the API server through the Service `kubernetes`, and has
    verified the Service's certificate.
    """
    pods = environment.client.list("/api/v1/namespaces/kube-system/pods", label_selector="k8s-app=kube-dns")["items"]

    assert {pod["spec"]["nodeName"] for pod in pods} == {"real-1", "real-2"}
    assert all(is_ready(pod) for pod in pods)


def test_pods_without_toleration_run_on_real_nodes(environment: RealNodesEnvironment) -> None:
    """Check that pods without a toleration run on the real nodes, because kwok's nodes have a taint."""
    spec: Object = {"replicas": 6, "selector": {"matchLabels": {"app": "ordinary"}}}
    pods = build_pod_spec("sleep 1000", terminationGracePeriodSeconds=1)
    spec["template"] = {"metadata": {"labels": {"app": "ordinary"}}, "spec": pods}
    body = {"metadata": {"name": "ordinary"}, "spec": spec}
    path = "/apis/apps/v1/namespaces/default/deployments"
    environment.client.create(path, body)
    running_pods = environment.wait_for_pods("ordinary", build_pods_ready_predicate(6))

    assert {pod["spec"]["nodeName"] for pod in running_pods} == {"real-1", "real-2"}
    assert environment.client.get("/api/v1/nodes/node-1")["spec"]["taints"] == [FAKE_NODE_TAINT]
    environment.delete(f"{path}/ordinary")
    environment.wait_for_pods("ordinary", lambda pods: not pods)


def test_containerd_runs_containers_while_pod_exists(environment: RealNodesEnvironment) -> None:
    """Check that containerd runs a pod's containers, including its sandbox, until the pod is deleted."""
    created = environment.create_pod("seen", "real-1", "sleep 1000")
    environment.wait_for_pod("seen", is_ready)
    running = environment.get_node("real-1").list_running_containers(created["metadata"]["uid"])
    environment.delete(f"{PODS_PATH}/seen")
    environment.wait_for_pods("seen", lambda pods: not pods)

    assert len(running) == 2
    assert environment.get_node("real-1").list_running_containers(created["metadata"]["uid"]) == set()


def test_image_deleted_on_node_stays_intact_on_other_nodes(environment: RealNodesEnvironment) -> None:
    """Check that an image deleted on one node stays intact on the other, although nodes share the unpacked files."""
    ctr = ("ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io", "images")
    first_sandbox, second_sandbox = environment.get_node("real-1").sandbox, environment.get_node("real-2").sandbox
    archive = environment.nodes.directory / "coredns.tar"
    try:
        first_sandbox.run(*ctr, "rm", "--sync", COREDNS_IMAGE)

        assert COREDNS_IMAGE not in first_sandbox.run(*ctr, "list", "--quiet").split()
        assert COREDNS_IMAGE in second_sandbox.run(*ctr, "list", "--quiet").split()
        second_sandbox.run(*ctr, "export", environment.nodes.directory / "whole.tar", COREDNS_IMAGE)
    finally:
        first_sandbox.run(*ctr, "import", "--snapshotter", environment.get_node("real-1").config.snapshotter, archive)
