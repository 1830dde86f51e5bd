"""Every way to install, as kustomize renders it and as a real API server with Knative's CRDs takes it."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from functions.app import FUNCTIONS
from localcluster.cluster import LocalCluster
from localcluster.programs import build
from tests.manifests.rendering import (
    CONFINED,
    FOLDERS,
    INSTALLS,
    MANIFESTS,
    OVERLAYS,
    ROOT,
    SPARING,
    WITH_MUTEX,
    Manifest,
    identity,
    of_kind,
    opted_steps,
    overlay,
    pod_specs,
    rendered,
    sent,
    text,
)
from tests.manifests.running import Running, drained_and_given_back
from tests.proofs import proves
from tests.sources import OPT_IN

WITH_FUNCTIONS = [name for name in OVERLAYS if name != "func"]
ONE_EACH = ("knative", "plain", "rabbitmq", "kafka", WITH_MUTEX)
BESIDE = ("podsource", "validate")
"""What runs beside the functions."""
HOMES = {"hyperconverged": "kubevirt-hyperconverged", "operator": "node-maintenance-operator"}
NAMESPACES = ("node-maintenance", "kubevirt-hyperconverged")


@pytest.fixture(scope="module")
def one_after_another(knative: LocalCluster) -> Iterator[LocalCluster]:
    """Give that cluster, where one install may come over the other; after the last our namespaces go.

    So does the API that one install brings. Nobody waits for that: to empty a namespace of all kinds takes seconds.
    """
    yield knative
    gone = ("--ignore-not-found", "--wait=false")
    knative.kubectl("delete", "namespace", *NAMESPACES, *gone)
    knative.kubectl("delete", "crd", "nodemaintenances.kubevirt.io", *gone)


@pytest.mark.slow
@proves("NMO-24")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_second_apply_changes_nothing(one_after_another: LocalCluster, folder: Path) -> None:
    """NMO-24: one command installs on a cluster with Knative, and again it is a no-op.

    The overlay that the README installs is applied by its very command.
    """
    sparing = [] if folder.name == "knative" else [SPARING]

    first = one_after_another.kubectl("apply", "-k", folder, *sparing).stdout.splitlines()
    second = one_after_another.kubectl("apply", "-k", folder, *sparing).stdout

    assert len(first) == len(second.splitlines()) == len(rendered(folder))
    # said when nothing was sent, since the live object is already as wanted, the server's defaults included
    assert sent(second) == []


@pytest.mark.slow
def test_without_knative_the_apply_fails_and_says_what_is_missing(cluster: LocalCluster) -> None:
    """NMO-24: nothing half-working goes unnoticed."""
    done = cluster.kubectl("apply", "--dry-run=server", "-k", MANIFESTS, SPARING, check=False)

    assert done.returncode == 1
    assert 'no matches for kind "Trigger" in version "eventing.knative.dev/v1"' in done.stderr
    assert "ensure CRDs are installed first" in done.stderr


@proves("NMO-24")
def test_the_plain_command_installs_the_knative_overlay() -> None:
    """NMO-24: `kubectl apply -k manifests`."""
    assert text(MANIFESTS) == text(MANIFESTS / "overlays" / "knative")


@pytest.mark.parametrize("file", sorted(MANIFESTS.rglob("kustomization.yaml")), ids=lambda file: file.parent.name)
def test_a_replacement_takes_no_regular_expression_for_a_name(file: Path) -> None:
    """Only kustomize 5.8 does; with the kubectl of an older cluster the folder would not render."""
    replacements = (yaml.safe_load(file.read_text()) or {}).get("replacements") or []
    targets = [target for each in replacements for target in each["targets"]]
    chosen = [choice for target in targets for choice in (target["select"], *target.get("reject", []))]

    names = [choice["name"] for choice in chosen if "name" in choice]
    assert [name for name in names if not re.fullmatch("[a-z0-9.-]+", name)] == []


@pytest.mark.parametrize("name", ["base", *OVERLAYS])
def test_an_overlay_says_only_what_differs(name: str) -> None:
    """A way to install is a choice of components, no copy."""
    folder = MANIFESTS / "base" if name == "base" else MANIFESTS / "overlays" / name
    file = folder / "kustomization.yaml"

    assert len(file.read_text().splitlines()) <= (35 if name == "operator" else 13)


@pytest.mark.parametrize("name", ONE_EACH)
def test_each_function_runs_under_its_own_account(name: str) -> None:
    """Least privilege holds only if no two share an account."""
    pods = pod_specs(overlay(name))

    served = FUNCTIONS.keys() - (OPT_IN - opted_steps(name))
    assert set(pods) == {*served, *BESIDE}
    assert {maker: pod["spec"]["serviceAccountName"] for maker, pod in pods.items()} == {maker: maker for maker in pods}
    for function in served:
        variables = {item["name"]: item.get("value") for item in pods[function]["spec"]["containers"][0]["env"]}
        assert variables["FUNCTION"] == function


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_pod_is_confined(name: str) -> None:
    """Non-root, read-only, no privileges to gain, seccomp, requests and limits, behind the closed policy."""
    for pod in pod_specs(overlay(name)).values():
        assert pod["metadata"]["labels"]["app.kubernetes.io/part-of"] == "node-maintenance"
        for container in pod["spec"]["containers"]:
            assert container["securityContext"] == CONFINED
            assert set(container["resources"]) == {"requests", "limits"}
            assert all(set(container["resources"][each]) == {"cpu", "memory"} for each in ("requests", "limits"))


@pytest.mark.parametrize("name", OVERLAYS)
def test_no_pod_is_killed_while_it_starts(name: str) -> None:
    """Many that start together on a busy node take longer than a liveness probe waits; so that one waits."""
    for pod in pod_specs(overlay(name)).values():
        for container in pod["spec"]["containers"]:
            probe, alive = dict(container["startupProbe"]), dict(container["livenessProbe"])
            assert probe.pop("periodSeconds") * probe.pop("failureThreshold") == 120
            assert probe.items() <= alive.items()


@pytest.mark.parametrize("name", OVERLAYS)
def test_podsource_is_asked_at_the_port_that_it_is_told(name: str) -> None:
    """It is started again when it does not answer, and read by Prometheus at the port that is open for it."""
    (container,) = pod_specs(overlay(name))["podsource"]["spec"]["containers"]
    told = {item["name"]: item.get("value") for item in container["env"]}

    assert told == {"PORT": "8080", "SIGNING_KEY": None}
    assert [each["containerPort"] for each in container["ports"]] == [8080]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": 8080}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8080}


def test_the_api_server_adds_no_number_to_the_template_of_podsource(knative: LocalCluster) -> None:
    """Knative's ContainerSource would write its Deployment anew for each, and take the sink away that SinkBinding set.

    Its comparison leaves out absent texts, lists and pointers, not numbers (`equality.Semantic.DeepDerivative`).
    """
    template = pod_specs(overlay("plain"))["podsource"]
    spec = {"selector": {"matchLabels": template["metadata"]["labels"]}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "podsource"}, "spec": spec}
    made = knative.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(deployment))

    added = numbers(json.loads(made.stdout)["spec"]["template"]) - numbers(template)

    assert added == {("spec", "terminationGracePeriodSeconds", 30)}, "a pointer, that one"


def numbers(value: object, *path: str) -> set[tuple[str | int, ...]]:
    """Give each number in there with the way to it."""
    if isinstance(value, Mapping):
        return {each for key, inner in value.items() for each in numbers(inner, *path, key)}
    if isinstance(value, list):
        return {each for place, inner in enumerate(value) for each in numbers(inner, *path, str(place))}
    return {(*path, value)} if isinstance(value, int) and not isinstance(value, bool) else set()


@pytest.mark.parametrize("name", WITH_FUNCTIONS)
def test_every_place_that_a_function_writes_to_is_a_volume(name: str) -> None:
    """The root is read-only: gunicorn's heartbeat goes to /tmp, the journal to its own folder."""
    for maker, pod in pod_specs(overlay(name)).items():
        if maker in BESIDE:
            continue
        container = pod["spec"]["containers"][0]
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        journal = [Path(item["value"]) for item in container["env"] if item["name"] == "JOURNAL"]
        assert "/tmp" in mounted  # noqa: S108
        assert all(str(file.parent) in mounted for file in journal)
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            item["name"] for item in pod["spec"]["volumes"]
        }


def threads_of(container: Manifest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many gunicorn has in this container."""
    monkeypatch.delenv("FUNCTION", raising=False)
    for item in container["env"]:
        if item["name"] == "FUNCTION":
            monkeypatch.setenv("FUNCTION", item["value"])
    return int(runpy.run_path(str(ROOT / "functions" / "gunicorn.conf.py"))["threads"])


@pytest.mark.parametrize("name", [name for name in WITH_FUNCTIONS if name != "plain"])
def test_knative_services_are_bounded_and_not_for_the_world(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale bounds, as many requests a pod as gunicorn has threads, visible inside the cluster only."""
    services = [item for item in of_kind(overlay(name), "Service") if item["apiVersion"] != "v1"]
    for service in services:
        template = service["spec"]["template"]
        annotations = template["metadata"]["annotations"]
        bounds = [int(annotations[f"autoscaling.knative.dev/{which}-scale"]) for which in ("min", "max")]
        assert 1 <= bounds[0] <= bounds[1]
        threads = threads_of(template["spec"]["containers"][0], monkeypatch)
        assert template["spec"]["containerConcurrency"] == threads
        assert service["metadata"]["labels"]["networking.knative.dev/visibility"] == "cluster-local"


def test_what_takes_hints_together_gets_them_in_one_pod_of_two() -> None:
    """Design rule 8: hints are absorbed within a process; the other pod is for when that one is away."""
    together = {name for name, function in FUNCTIONS.items() if function.looks and name not in OPT_IN} | {"status"}
    services = of_kind(overlay("plain"), "Service")

    assert {item["metadata"]["name"] for item in services if "sessionAffinity" in item["spec"]} == together
    assert {item["spec"].get("sessionAffinity", "ClientIP") for item in services} == {"ClientIP"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_journal_has_one_writer(name: str) -> None:
    """SQLite's lock does not reach from one pod's disk to another's: whoever records runs once."""
    recorders = [
        item for item in overlay(name) if item["metadata"]["name"] in ("record", "functions") and "spec" in item
    ]
    for maker in [item for item in recorders if "template" in item["spec"]]:
        annotations = maker["spec"]["template"]["metadata"].get("annotations", {})
        assert maker["spec"].get("replicas") == 1 or annotations["autoscaling.knative.dev/max-scale"] == "1"


def test_two_pods_of_record_share_no_volume(tmp_path: Path) -> None:
    """One node at a time may have the claim of `journal`, and a second pod would wait there for ever."""

    def combined(*names: str) -> Path:
        there = os.path.relpath(MANIFESTS, tmp_path.resolve())
        components = [f"{there}/components/{name}" for name in names]
        file = {"resources": [f"{there}/overlays/plain"], "components": components}
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(file))
        return tmp_path

    objects = rendered(combined("journal", "postgresql"))
    [record] = [item for item in of_kind(objects, "Deployment") if item["metadata"]["name"] == "record"]
    assert record["spec"]["replicas"] == 2
    assert not any("persistentVolumeClaim" in volume for volume in record["spec"]["template"]["spec"]["volumes"])

    command = [str(build.servers() / "kubectl"), "kustomize", str(combined("postgresql", "journal"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "/spec/replicas" in done.stderr


@pytest.mark.parametrize("name", WITH_FUNCTIONS)
def test_every_function_is_told_where_its_runs_are_recorded(name: str) -> None:
    """Each but `record` itself; where one process serves all, that is itself, past every network."""
    told = {
        maker: {item["value"] for item in pod["spec"]["containers"][0].get("env", []) if item["name"] == "RECORD"}
        for maker, pod in pod_specs(overlay(name)).items()
        if maker not in BESIDE
    }

    if name in ONE_EACH:
        assert told.pop("record") == set()
        assert told == {maker: {"http://record.node-maintenance.svc/record"} for maker in told}
    else:
        beside = {"renew-certificates"} & told.keys()
        assert all(told.pop(maker) == {"http://functions.node-maintenance.svc/record"} for maker in beside)
        assert list(told.values()) == [{"http://127.0.0.1:8080/record"}]


@pytest.mark.parametrize("name", OVERLAYS)
def test_whoever_may_answer_with_several_events_is_told_the_brokers_address(name: str) -> None:
    """A reply is one event; resync and guard may have one for each maintenance."""
    objects = overlay(name)
    (binding,) = of_kind(objects, "SinkBinding")
    subject, wanted = binding["spec"]["subject"], binding["spec"]["subject"]["selector"]["matchLabels"].items()
    makers = [
        item for item in objects if item["apiVersion"] == subject["apiVersion"] and item["kind"] == subject["kind"]
    ]
    bound = {item["metadata"]["name"] for item in makers if wanted <= item["metadata"]["labels"].items()}

    assert binding["spec"]["sink"]["ref"]["kind"] == "Broker"
    assert subject["namespace"] == binding["metadata"]["namespace"]
    if name in ONE_EACH:
        assert bound == {"guard", "resync", *(["resync-runs"] if name == WITH_MUTEX else [])}
    elif name == "func":
        labels = {
            item["key"]: item["value"] for item in yaml.safe_load((ROOT / "func.yaml").read_text())["deploy"]["labels"]
        }
        assert wanted <= labels.items()
    else:
        assert len(bound) == 1


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_destination_is_there(name: str) -> None:
    """What a Trigger, a source or a Broker refers to is in the same overlay, in the same namespace."""
    objects = overlay(name)
    there = {identity(item) for item in objects}
    if name == "func":  # brought by func deploy
        there.add(
            (
                "serving.knative.dev/v1",
                "Service",
                "node-maintenance",
                yaml.safe_load((ROOT / "func.yaml").read_text())["name"],
            )
        )
    found = [ref for item in objects for ref in references(item.get("spec", {}))]

    assert len(found) > 25
    assert {identity({**ref, "metadata": ref}) for ref in found} <= there


def references(value: Any) -> Iterator[Manifest]:
    """Every `ref` at any depth, and what a Broker is configured by."""
    if isinstance(value, list):
        for item in value:
            yield from references(item)
    elif isinstance(value, dict):
        for key, child in value.items():
            if key in ("ref", "config") and "kind" in child:
                yield child
            else:
                yield from references(child)


@pytest.mark.parametrize("name", OVERLAYS)
def test_no_object_is_there_twice_or_left_behind_in_another_namespace(name: str) -> None:
    """Leases and node Events have their one namespace; everything else moves with the install."""
    found = [identity(item) for item in overlay(name)]
    home = HOMES.get(name, "node-maintenance")

    assert len(set(found)) == len(found)
    strays = [(kind, namespace) for _, kind, namespace, _ in found if namespace not in ("", home)]
    assert all(kind in ("Role", "RoleBinding") for kind, _ in strays)
    jobs = {"node-upgrade-mutex-operator"} if name == WITH_MUTEX else set()
    assert {namespace for _, namespace in strays} <= {"default", "medik8s-leases", *jobs}


@pytest.mark.parametrize(
    ("name", "broker_class", "config"),
    [
        ("knative", "MTChannelBasedBroker", "ConfigMap"),
        ("rabbitmq", "RabbitMQBroker", "RabbitmqBrokerConfig"),
        ("kafka", "Kafka", "ConfigMap"),
    ],
)
def test_the_broker_is_of_the_class_that_the_overlay_says(name: str, broker_class: str, config: str) -> None:
    """The class is never left to the cluster's default."""
    (broker,) = of_kind(overlay(name), "Broker")

    assert broker["metadata"]["annotations"]["eventing.knative.dev/broker.class"] == broker_class
    assert broker["spec"]["config"]["kind"] == config


@pytest.mark.parametrize("name", [name for name in OVERLAYS if name not in ("rabbitmq", "kafka")])
def test_the_in_memory_channel_is_to_deliver_asynchronously(name: str) -> None:
    """A synchronous channel would run 20 drains one after another; the Broker hands the annotation on to it."""
    (broker,) = of_kind(overlay(name), "Broker")

    assert broker["metadata"]["annotations"]["messaging.knative.dev/async-handler"] == "true"


@pytest.mark.parametrize(
    ("name", "annotations"),
    [
        ("rabbitmq", {"rabbitmq.eventing.knative.dev/parallelism": "20"}),
        ("kafka", {"kafka.eventing.knative.dev/delivery.order": "ordered"}),
    ],
)
def test_every_trigger_tells_its_broker_how_to_deliver(name: str, annotations: dict[str, str]) -> None:
    """RabbitMQ: more than one event at a time. Kafka: in order, for each partition key."""
    for trigger in of_kind(overlay(name), "Trigger"):
        assert trigger["metadata"]["annotations"] == annotations


def test_rabbitmq_keeps_events_in_quorum_queues() -> None:
    """They survive the loss of one node of RabbitMQ."""
    (config,) = of_kind(overlay("rabbitmq"), "RabbitmqBrokerConfig")

    assert config["spec"]["queueType"] == "quorum"


LOOKING = ("resync", "resync-runs", "renew-certificates", "migrate", "protect", "label-cpu")
POLICIES = {
    "record": (40, "linear", "PT1S", "PT10S"),
    **dict.fromkeys(LOOKING, (2, "exponential", "PT0.5S", "PT4S")),
}
"""Function → how hard is tried to reach it, where that differs; none of them has a dead letter sink."""


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_trigger_says_how_hard_to_try(name: str) -> None:
    """Retry, backoff, timeout; what cannot be delivered goes to the journal, unless that is what failed, or a tick.

    A tick is given up before the next one. The journal is tried for longer, and yet soon after its database is back.
    RabbitMQ closes the channel of an event that is tried for half an hour (`consumer_timeout`): with a timeout at each
    try it is 20 minutes.
    """
    for trigger in of_kind(overlay(name), "Trigger"):
        delivery = trigger["spec"]["delivery"]
        name = trigger["metadata"]["labels"]["nodemaintenance.dev/function"]
        tried = (delivery["retry"], delivery["backoffPolicy"], delivery["backoffDelay"], delivery["timeout"])
        assert tried == POLICIES.get(name, (10, "exponential", "PT0.2S", "PT10S"))
        assert delivery.get("deadLetterSink", {}).get("uri") == (None if name in POLICIES else "/record")


@pytest.mark.parametrize("name", INSTALLS)
def test_only_the_way_in_is_open(name: str) -> None:
    """Closed for all our pods; opened for the broker's data plane, and for Serving where it stands between.

    Without Serving the functions reach `record` directly, and nothing else. RabbitMQ's ingress is in our namespace, and
    takes events of our sources and of what answers.
    """
    policies = {item["metadata"]["name"]: item["spec"] for item in of_kind(overlay(name), "NetworkPolicy")}
    to_admission = policies.pop("to-admission", None)  # the API server comes from anywhere
    if to_admission:
        assert to_admission["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8443}]}]
    opened = [peer for policy in policies.values() for rule in policy.get("ingress", []) for peer in rule["from"]]

    own = {"from-functions"} if name == "plain" else {"from-serving"}
    broker = f"from-{name if name in ('rabbitmq', 'kafka') else 'inmemory'}"
    assert set(policies) == {"closed", broker} | own | ({"to-broker"} if name == "rabbitmq" else set())
    assert policies["closed"] == {
        "podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "node-maintenance"}},
        "policyTypes": ["Ingress"],
    }
    assert all(rule["ports"] for policy in policies.values() for rule in policy.get("ingress", []))
    assert all(peer.keys() <= {"namespaceSelector", "podSelector"} and peer for peer in opened)


@pytest.mark.slow
@proves("DRN-15", "DRN-15a", "X-7")
def test_the_install_beside_hyperconverged_drains_by_an_object_of_the_oldest_api(
    one_after_another: LocalCluster, tmp_path: Path
) -> None:
    """API and source come with the overlay; a whole maintenance runs under the accounts of that namespace."""
    objects = overlay("hyperconverged")
    sources = of_kind(objects, "ApiServerSource")
    watched = {kind["apiVersion"]: identity(source)[2] for source in sources for kind in source["spec"]["resources"]}
    one_after_another.kubectl("apply", SPARING, "-k", MANIFESTS / "overlays" / "hyperconverged")

    with Running(one_after_another, objects, tmp_path):
        drained_and_given_back(one_after_another)

    assert watched["kubevirt.io/v1alpha1"] == "kubevirt-hyperconverged"
