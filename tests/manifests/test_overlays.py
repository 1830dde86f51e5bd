"""Every overlay, as rendered by kustomize and as accepted by a real API server with Knative's CRDs."""

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
from tests.manifests.running_install import Running, drained_and_given_back
from tests.proofs import proves
from tests.sources import OPT_IN

WITH_FUNCTIONS = [name for name in OVERLAYS if name != "func"]
ONE_EACH = ("knative", "plain", "rabbitmq", "kafka", WITH_MUTEX)
BESIDE = ("podsource", "validate")
"""Workloads other than the functions."""
HOMES = {"hyperconverged": "kubevirt-hyperconverged", "operator": "node-maintenance-operator"}
NAMESPACES = ("node-maintenance", "kubevirt-hyperconverged")


@pytest.fixture(scope="module")
def one_after_another(knative: LocalCluster) -> Iterator[LocalCluster]:
    """Yield that cluster for applying one overlay over another; delete their namespaces and the oldest API at the end.

    The deletion is not awaited, because emptying a namespace takes seconds.
    """
    yield knative
    gone = ("--ignore-not-found", "--wait=false")
    knative.kubectl("delete", "namespace", *NAMESPACES, *gone)
    knative.kubectl("delete", "crd", "nodemaintenances.kubevirt.io", *gone)


@pytest.mark.slow
@proves("NMO-24")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_second_apply_changes_nothing(one_after_another: LocalCluster, folder: Path) -> None:
    """NMO-24: one command installs on a cluster with Knative, and running it again changes nothing.

    The overlay that the README installs is applied with the README's command.
    """
    sparing = [] if folder.name == "knative" else [SPARING]

    first = one_after_another.kubectl("apply", "-k", folder, *sparing).stdout.splitlines()
    second = one_after_another.kubectl("apply", "-k", folder, *sparing).stdout

    assert len(first) == len(second.splitlines()) == len(rendered(folder))
    # kubectl prints "unchanged" if it sent nothing: the live object, with the server's defaults, is as desired
    assert sent(second) == []


@pytest.mark.slow
def test_without_knative_the_apply_fails_and_says_what_is_missing(cluster: LocalCluster) -> None:
    """NMO-24: without Knative the apply fails and names the missing kind."""
    done = cluster.kubectl("apply", "--dry-run=server", "-k", MANIFESTS, SPARING, check=False)

    assert done.returncode == 1
    assert 'no matches for kind "Trigger" in version "eventing.knative.dev/v1"' in done.stderr
    assert "ensure CRDs are installed first" in done.stderr


@proves("NMO-24")
def test_the_plain_command_installs_the_knative_overlay() -> None:
    """NMO-24: `kubectl apply -k manifests` installs the overlay `knative`."""
    assert text(MANIFESTS) == text(MANIFESTS / "overlays" / "knative")


@pytest.mark.parametrize("file", sorted(MANIFESTS.rglob("kustomization.yaml")), ids=lambda file: file.parent.name)
def test_a_replacement_takes_no_regular_expression_for_a_name(file: Path) -> None:
    """Check that replacements select names exactly: kustomize before 5.8 does not support regular expressions.

    The kubectl of an older cluster could not render such a directory.
    """
    replacements = (yaml.safe_load(file.read_text()) or {}).get("replacements") or []
    targets = [target for each in replacements for target in each["targets"]]
    chosen = [choice for target in targets for choice in (target["select"], *target.get("reject", []))]

    names = [choice["name"] for choice in chosen if "name" in choice]
    assert [name for name in names if not re.fullmatch("[a-z0-9.-]+", name)] == []


@pytest.mark.parametrize("name", ["base", *OVERLAYS])
def test_an_overlay_says_only_what_differs(name: str) -> None:
    """Check that an overlay is a short selection of components, not a copy of their content."""
    folder = MANIFESTS / "base" if name == "base" else MANIFESTS / "overlays" / name
    file = folder / "kustomization.yaml"

    assert len(file.read_text().splitlines()) <= (35 if name == "operator" else 13)


@pytest.mark.parametrize("name", ONE_EACH)
def test_each_function_runs_under_its_own_account(name: str) -> None:
    """Check that each function runs with its own ServiceAccount, as least privilege requires."""
    pods = pod_specs(overlay(name))

    served = FUNCTIONS.keys() - (OPT_IN - opted_steps(name))
    assert set(pods) == {*served, *BESIDE}
    assert {maker: pod["spec"]["serviceAccountName"] for maker, pod in pods.items()} == {maker: maker for maker in pods}
    for function in served:
        variables = {item["name"]: item.get("value") for item in pods[function]["spec"]["containers"][0]["env"]}
        assert variables["FUNCTION"] == function


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_pod_is_confined(name: str) -> None:
    """Check that every pod has the restricted security context, requests, limits and the network policy's label."""
    for pod in pod_specs(overlay(name)).values():
        assert pod["metadata"]["labels"]["app.kubernetes.io/part-of"] == "node-maintenance"
        for container in pod["spec"]["containers"]:
            assert container["securityContext"] == CONFINED
            assert set(container["resources"]) == {"requests", "limits"}
            assert all(set(container["resources"][each]) == {"cpu", "memory"} for each in ("requests", "limits"))


@pytest.mark.parametrize("name", OVERLAYS)
def test_no_pod_is_killed_while_it_starts(name: str) -> None:
    """Check that a startup probe allows two minutes, since many pods that start on a busy node need that long."""
    for pod in pod_specs(overlay(name)).values():
        for container in pod["spec"]["containers"]:
            probe, alive = dict(container["startupProbe"]), dict(container["livenessProbe"])
            assert probe.pop("periodSeconds") * probe.pop("failureThreshold") == 120
            assert probe.items() <= alive.items()


@pytest.mark.parametrize("name", OVERLAYS)
def test_podsource_is_asked_at_the_port_that_it_is_told(name: str) -> None:
    """Check that PodSource's probes and Prometheus use the port that is set in its environment."""
    (container,) = pod_specs(overlay(name))["podsource"]["spec"]["containers"]
    told = {item["name"]: item.get("value") for item in container["env"]}

    assert told == {"PORT": "8080", "SIGNING_KEY": None}
    assert [each["containerPort"] for each in container["ports"]] == [8080]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": 8080}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8080}


def test_the_api_server_adds_no_number_to_the_template_of_podsource(knative: LocalCluster) -> None:
    """Check that the API server adds no default number to PodSource's pod template.

    Otherwise Knative's ContainerSource controller would rewrite its Deployment, and remove the sink that SinkBinding
    set. Its comparison ignores absent strings, lists and pointers, but not numbers
    (`equality.Semantic.DeepDerivative`).
    """
    template = pod_specs(overlay("plain"))["podsource"]
    spec = {"selector": {"matchLabels": template["metadata"]["labels"]}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "podsource"}, "spec": spec}
    made = knative.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(deployment))

    added = numbers(json.loads(made.stdout)["spec"]["template"]) - numbers(template)

    assert added == {("spec", "terminationGracePeriodSeconds", 30)}, "a pointer, that one"


def numbers(value: object, *path: str) -> set[tuple[str | int, ...]]:
    """Return every number in the object together with its path."""
    if isinstance(value, Mapping):
        return {each for key, inner in value.items() for each in numbers(inner, *path, key)}
    if isinstance(value, list):
        return {each for place, inner in enumerate(value) for each in numbers(inner, *path, str(place))}
    return {(*path, value)} if isinstance(value, int) and not isinstance(value, bool) else set()


@pytest.mark.parametrize("name", WITH_FUNCTIONS)
def test_every_place_that_a_function_writes_to_is_a_volume(name: str) -> None:
    """Check that /tmp, for gunicorn's heartbeat, and the journal's directory are volumes: the root is read-only."""
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
    """Return the number of gunicorn threads in this container."""
    monkeypatch.delenv("FUNCTION", raising=False)
    for item in container["env"]:
        if item["name"] == "FUNCTION":
            monkeypatch.setenv("FUNCTION", item["value"])
    return int(runpy.run_path(str(ROOT / "functions" / "gunicorn.conf.py"))["threads"])


@pytest.mark.parametrize("name", [name for name in WITH_FUNCTIONS if name != "plain"])
def test_knative_services_are_bounded_and_not_for_the_world(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that Knative Services have scale bounds, gunicorn's thread count as concurrency, and are cluster-local."""
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
    """Design rule 8: functions that coalesce hints within a process get session affinity, so that one pod gets all.

    The other pod is used while that one is unavailable.
    """
    together = {name for name, function in FUNCTIONS.items() if function.looks and name not in OPT_IN} | {"status"}
    services = of_kind(overlay("plain"), "Service")

    assert {item["metadata"]["name"] for item in services if "sessionAffinity" in item["spec"]} == together
    assert {item["spec"].get("sessionAffinity", "ClientIP") for item in services} == {"ClientIP"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_journal_has_one_writer(name: str) -> None:
    """Check that `record` has one replica: SQLite's lock does not work across pods with separate disks."""
    recorders = [
        item for item in overlay(name) if item["metadata"]["name"] in ("record", "functions") and "spec" in item
    ]
    for maker in [item for item in recorders if "template" in item["spec"]]:
        annotations = maker["spec"]["template"]["metadata"].get("annotations", {})
        assert maker["spec"].get("replicas") == 1 or annotations["autoscaling.knative.dev/max-scale"] == "1"


def test_two_pods_of_record_share_no_volume(tmp_path: Path) -> None:
    """Check that two pods of `record` do not share a volume claim.

    The volume of `journal` is used on one node at a time, so a second pod would never start there.
    """

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
    """Check that every function knows the address of `record`: its own process, if that serves all functions."""
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
    """Check that functions with several response events know the Broker's address.

    A reply contains one event; `resync` and `guard` can emit one for each maintenance.
    """
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
    """Check that each object that a Trigger, source or Broker refers to is in the same overlay and namespace."""
    objects = overlay(name)
    there = {identity(item) for item in objects}
    if name == "func":  # func deploys it
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
    """Yield every `ref` at any depth, and every Broker's `config`."""
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
    """Check that no object occurs twice, and that all but a few RBAC objects are in the install's namespace.

    The roles for Leases, node Events and Jobs are in fixed namespaces.
    """
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
    """Check that the overlay sets the Broker's class, instead of leaving it to the cluster's default."""
    (broker,) = of_kind(overlay(name), "Broker")

    assert broker["metadata"]["annotations"]["eventing.knative.dev/broker.class"] == broker_class
    assert broker["spec"]["config"]["kind"] == config


@pytest.mark.parametrize("name", [name for name in OVERLAYS if name not in ("rabbitmq", "kafka")])
def test_the_in_memory_channel_is_to_deliver_asynchronously(name: str) -> None:
    """Check that the in-memory channel delivers asynchronously; otherwise it would serialize 20 drains.

    The Broker copies its annotation to the channel.
    """
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
    """Check that Triggers set the delivery of RabbitMQ (parallel) and Kafka (ordered by partition key)."""
    for trigger in of_kind(overlay(name), "Trigger"):
        assert trigger["metadata"]["annotations"] == annotations


def test_rabbitmq_keeps_events_in_quorum_queues() -> None:
    """Check that RabbitMQ uses quorum queues, which survive the loss of one of its nodes."""
    (config,) = of_kind(overlay("rabbitmq"), "RabbitmqBrokerConfig")

    assert config["spec"]["queueType"] == "quorum"


LOOKING = ("resync", "resync-runs", "renew-certificates", "migrate", "protect", "label-cpu")
POLICIES = {
    "record": (40, "linear", "PT1S", "PT10S"),
    **dict.fromkeys(LOOKING, (2, "exponential", "PT0.5S", "PT4S")),
}
"""Function → retry, backoff policy, backoff delay and timeout, if they differ; none has a dead letter sink."""


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_trigger_says_how_hard_to_try(name: str) -> None:
    """Check that each Trigger sets retries, backoff and timeout, and the dead letter sink unless the tick replaces it.

    The delivery of a tick ends before the next one. `record` gets more retries, with short delays so that they succeed
    soon after its database is back. RabbitMQ closes the channel of an event after half an hour (`consumer_timeout`).
    With a timeout at each attempt, all retries take 20 minutes.
    """
    for trigger in of_kind(overlay(name), "Trigger"):
        delivery = trigger["spec"]["delivery"]
        name = trigger["metadata"]["labels"]["nodemaintenance.dev/function"]
        tried = (delivery["retry"], delivery["backoffPolicy"], delivery["backoffDelay"], delivery["timeout"])
        assert tried == POLICIES.get(name, (10, "exponential", "PT0.2S", "PT10S"))
        assert delivery.get("deadLetterSink", {}).get("uri") == (None if name in POLICIES else "/record")


@pytest.mark.parametrize("name", INSTALLS)
def test_only_the_way_in_is_open(name: str) -> None:
    """Check that network policies deny incoming traffic to the product's pods, except from the Broker and Serving.

    Without Serving, the functions reach `record` directly. RabbitMQ's ingress runs in the product's namespace and
    accepts events from its sources and functions.
    """
    policies = {item["metadata"]["name"]: item["spec"] for item in of_kind(overlay(name), "NetworkPolicy")}
    to_admission = policies.pop("to-admission", None)  # the API server's address is unknown
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
    """Check that the overlay `hyperconverged` serves and watches the oldest API.

    A complete maintenance runs with the accounts of its namespace.
    """
    objects = overlay("hyperconverged")
    sources = of_kind(objects, "ApiServerSource")
    watched = {kind["apiVersion"]: identity(source)[2] for source in sources for kind in source["spec"]["resources"]}
    one_after_another.kubectl("apply", SPARING, "-k", MANIFESTS / "overlays" / "hyperconverged")

    with Running(one_after_another, objects, tmp_path):
        drained_and_given_back(one_after_another)

    assert watched["kubevirt.io/v1alpha1"] == "kubevirt-hyperconverged"
