"""Tests of pods on real nodes: networking, DNS, probes, tokens, logs and images."""

from __future__ import annotations

import pytest

from kube.paths import Object
from kube.pods import is_ready
from localcluster.cluster import FAKE
from localcluster.nodes.real_nodes import COREDNS
from localcluster.nodes.node_config import SOCKET
from tests.real.environment import PODS, SERVES, WEB, Real, ready_and_whole, template

pytestmark = pytest.mark.real


def test_a_pod_asks_one_on_another_node_by_its_services_name(real: Real) -> None:
    """Pods reach a pod on another node by its Service's name through CNI, kube-proxy and CoreDNS."""
    real.pod("answers", "real-1", WEB.format(says="hello"), readinessProbe=SERVES)
    real.service("answers")
    real.until_pod("answers", is_ready)
    ask = "until wget -q -O - http://{}/; do sleep 1; done; "
    asks = "".join(map(ask.format, ("answers", "answers.default.svc.cluster.local")))
    real.pod("asks", "real-2", asks, restartPolicy="Never")

    asked = real.until_pod("asks", lambda pod: pod["status"].get("phase") == "Succeeded")

    assert asked["spec"]["nodeName"] == "real-2"
    assert real.logs("asks").splitlines()[-2:] == ["hello", "hello"]


def test_a_pod_is_ready_when_its_probe_says_so(real: Real) -> None:
    """Readiness follows the readiness probe, and a failed liveness probe restarts the container."""
    script = "touch alive; sleep 3; touch ready; sleep 4; rm -f ready alive; sleep 1000"
    file = {"periodSeconds": 1, "failureThreshold": 1}
    probes = {
        "readinessProbe": {"exec": {"command": ["ls", "ready"]}, **file},
        "livenessProbe": {"exec": {"command": ["ls", "alive"]}, **file, "failureThreshold": 2},
    }
    real.pod("probed", "real-1", script, **probes)

    started = real.until_pod("probed", lambda pod: pod["status"].get("phase") == "Running")
    real.until_pod("probed", is_ready)
    real.until_pod("probed", lambda pod: not is_ready(pod))
    again = real.until_pod("probed", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 1)

    assert not is_ready(started)
    assert again["metadata"]["uid"] == started["metadata"]["uid"]


def test_a_pod_has_a_token_that_the_api_server_takes(real: Real) -> None:
    """Pods get a token, the CA and the namespace from the kubelet, and the API server accepts the token."""
    folder = "/var/run/secrets/kubernetes.io/serviceaccount"
    shows = "; echo; ".join(f"cat {folder}/{name}" for name in ("namespace", "token", "ca.crt"))
    real.pod("known", "real-2", shows, restartPolicy="Never")
    real.until_pod("known", lambda pod: pod["status"].get("phase") == "Succeeded")

    namespace, token, *trusted = real.logs("known").splitlines()
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    status = real.door.create("/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]

    assert namespace == "default"
    assert status["user"]["username"] == "system:serviceaccount:default:default"
    assert status["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["known"]
    assert "\n".join(trusted).strip() == real.cluster.certificate.strip()


def test_coredns_reached_the_api_server_from_its_pods(real: Real) -> None:
    """CoreDNS is Ready on both nodes.

    It becomes Ready once it has read all Services from the API server, through the Service `kubernetes` and with a
    verified certificate.
    """
    pods = real.door.list("/api/v1/namespaces/kube-system/pods", labels="k8s-app=kube-dns")["items"]

    assert {pod["spec"]["nodeName"] for pod in pods} == {"real-1", "real-2"}
    assert all(is_ready(pod) for pod in pods)


def test_ordinary_pods_land_on_real_nodes(real: Real) -> None:
    """Pods without a toleration run on real nodes, because kwok's nodes have a taint."""
    spec: Object = {"replicas": 6, "selector": {"matchLabels": {"app": "ordinary"}}}
    pods = template("sleep 1000", terminationGracePeriodSeconds=1)
    spec["template"] = {"metadata": {"labels": {"app": "ordinary"}}, "spec": pods}
    body = {"metadata": {"name": "ordinary"}, "spec": spec}
    path = "/apis/apps/v1/namespaces/default/deployments"
    real.door.create(path, body)
    found = real.until_pods("ordinary", ready_and_whole(6))

    assert {pod["spec"]["nodeName"] for pod in found} == {"real-1", "real-2"}
    assert real.door.get("/api/v1/nodes/node-1")["spec"]["taints"] == [FAKE]
    real.delete(f"{path}/ordinary")
    real.until_pods("ordinary", lambda pods: not pods)


def test_what_a_pod_is_to_the_api_server_containerd_runs(real: Real) -> None:
    """Containers of a pod, including its sandbox, run in containerd exactly while the pod exists."""
    made = real.pod("seen", "real-1", "sleep 1000")
    real.until_pod("seen", is_ready)
    there = real.node("real-1").running(made["metadata"]["uid"])
    real.delete(f"{PODS}/seen")
    real.until_pods("seen", lambda pods: not pods)

    assert len(there) == 2
    assert real.node("real-1").running(made["metadata"]["uid"]) == set()


def test_an_image_that_one_node_deletes_stays_whole_on_the_other(real: Real) -> None:
    """Deleting an image on one node keeps it complete on the other, although the nodes share the unpacked files."""
    ctr = ("ctr", "--address", SOCKET, "--namespace", "k8s.io", "images")
    one, other = real.node("real-1").room, real.node("real-2").room
    again = real.nodes.folder / "coredns.tar"
    try:
        one.run(*ctr, "rm", "--sync", COREDNS)

        assert COREDNS not in one.run(*ctr, "list", "--quiet").split()
        assert COREDNS in other.run(*ctr, "list", "--quiet").split()
        other.run(*ctr, "export", real.nodes.folder / "whole.tar", COREDNS)
    finally:
        one.run(*ctr, "import", "--snapshotter", real.node("real-1").settings.snapshotter, again)
