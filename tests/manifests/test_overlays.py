"""Tests for every overlay, rendered by kustomize and applied to a real API server with Knative's CRDs."""

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
from localcluster.knative import pod_install
from localcluster.programs import build
from tests.manifests.rendering import (
    INSTALL_DIRS,
    INSTALL_OVERLAYS,
    MANIFESTS,
    MUTEX_OVERLAY,
    OVERLAYS,
    ROOT,
    SECURITY_CONTEXT,
    SHARED_LABEL,
    SKIP_SCHEMA_OPTION,
    Manifest,
    filter_by_kind,
    get_identity,
    get_pod_templates,
    list_changed_objects,
    list_optional_steps,
    render,
    render_overlay,
    render_yaml,
)
from tests.manifests.running_install import RunningInstall, check_drain_and_restore
from tests.proofs import proves
from tests.sources import OPT_IN_STEPS

OVERLAYS_WITH_FUNCTIONS = [name for name in OVERLAYS if name != "func"]
ONE_SERVICE_PER_FUNCTION = ("knative", "plain", "rabbitmq", "kafka", MUTEX_OVERLAY)
OTHER_WORKLOADS = ("podsource", "validate")
"""The product's workloads that are not functions."""
OVERLAY_NAMESPACES = {"hyperconverged": "kubevirt-hyperconverged", "operator": "node-maintenance-operator"}
DELETED_NAMESPACES = ("node-maintenance", "kubevirt-hyperconverged")


@pytest.fixture(scope="module")
def install_cluster(knative_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Yield a cluster to which tests apply overlays; afterwards delete their namespaces and the oldest API's CRD.

    The fixture does not wait for the deletion, because emptying a namespace takes seconds.
    """
    yield knative_cluster
    delete_options = ("--ignore-not-found", "--wait=false")
    knative_cluster.kubectl("delete", "namespace", *DELETED_NAMESPACES, *delete_options)
    knative_cluster.kubectl("delete", "crd", "nodemaintenances.kubevirt.io", *delete_options)


@pytest.mark.slow
@proves("NMO-24")
@pytest.mark.parametrize("folder", INSTALL_DIRS, ids=lambda folder: folder.name)
def test_second_apply_changes_nothing(install_cluster: LocalCluster, folder: Path) -> None:
    """NMO-24: one command installs an overlay on a cluster with Knative, and a second run changes nothing.

    The overlay that the README installs is applied with the README's command.
    """
    validation_options = [] if folder.name == "knative" else [SKIP_SCHEMA_OPTION]

    first_lines = install_cluster.kubectl("apply", "-k", folder, *validation_options).stdout.splitlines()
    second_output = install_cluster.kubectl("apply", "-k", folder, *validation_options).stdout

    assert len(first_lines) == len(second_output.splitlines()) == len(render(folder))
    # kubectl prints "unchanged" if it sent nothing, because the live object has all values of the manifest.
    assert list_changed_objects(second_output) == []


@pytest.mark.slow
def test_apply_without_knative_names_missing_kind(cluster: LocalCluster) -> None:
    """NMO-24: without Knative, the apply fails and names the missing kind."""
    result = cluster.kubectl("apply", "--dry-run=server", "-k", MANIFESTS, SKIP_SCHEMA_OPTION, check=False)

    assert result.returncode == 1
    assert 'no matches for kind "Trigger" in version "eventing.knative.dev/v1"' in result.stderr
    assert "ensure CRDs are installed first" in result.stderr


@proves("NMO-24")
def test_manifests_directory_installs_knative_overlay() -> None:
    """NMO-24: `kubectl apply -k manifests` installs the overlay `knative`."""
    assert render_yaml(MANIFESTS) == render_yaml(MANIFESTS / "overlays" / "knative")


def list_names_in_replacements(file: Path) -> list[str]:
    """Return the names in the selectors of a kustomization's `replacements`."""
    replacements = (yaml.safe_load(file.read_text()) or {}).get("replacements") or []
    targets = [target for replacement in replacements for target in replacement["targets"]]
    selectors = [selector for target in targets for selector in (target["select"], *target.get("reject", []))]
    return [selector["name"] for selector in selectors if "name" in selector]


def test_kustomize_replacements_use_exact_names() -> None:
    """Check that kustomize's `replacements` use exact names, because versions before 5.8 have no regular expressions.

    An older kubectl could not render a directory with regular expressions.
    """
    names = {
        (str(file.relative_to(MANIFESTS)), name)
        for file in MANIFESTS.rglob("kustomization.yaml")
        for name in list_names_in_replacements(file)
    }

    assert names
    assert {(file, name) for file, name in names if not re.fullmatch("[a-z0-9.-]+", name)} == set()


def test_overlay_is_short_list_of_components() -> None:
    """Check that an overlay is only a short list of components, and not a copy of their content."""
    folders = (MANIFESTS / "base", *(MANIFESTS / "overlays" / name for name in OVERLAYS))
    line_counts = {folder.name: len((folder / "kustomization.yaml").read_text().splitlines()) for folder in folders}

    assert OVERLAYS
    assert {name: count for name, count in line_counts.items() if count > (35 if name == "operator" else 13)} == {}


@pytest.mark.parametrize("name", ONE_SERVICE_PER_FUNCTION)
def test_each_function_has_its_own_service_account(name: str) -> None:
    """Check that each function has its own ServiceAccount, according to the principle of least privilege."""
    pods = get_pod_templates(render_overlay(name))

    function_names = FUNCTIONS.keys() - (OPT_IN_STEPS - list_optional_steps(name))
    assert set(pods) == {*function_names, *OTHER_WORKLOADS}
    assert {workload: pod["spec"]["serviceAccountName"] for workload, pod in pods.items()} == {
        workload: workload for workload in pods
    }
    for function in function_names:
        variables = {
            variable["name"]: variable.get("value") for variable in pods[function]["spec"]["containers"][0]["env"]
        }
        assert variables["FUNCTION"] == function


def list_unrestricted_fields(pod: Manifest) -> list[str]:
    """Return the fields that keep the pod from being restricted."""
    labels = pod["metadata"].get("labels", {})
    fields = [] if labels.get("app.kubernetes.io/part-of") == "node-maintenance" else ["labels"]
    for container in pod["spec"]["containers"]:
        resources = {kind: set(amounts) for kind, amounts in container.get("resources", {}).items()}
        if container.get("securityContext") != SECURITY_CONTEXT:
            fields.append(f"securityContext of container {container['name']}")
        if resources != {"requests": {"cpu", "memory"}, "limits": {"cpu", "memory"}}:
            fields.append(f"resources of container {container['name']}")
    return fields


def test_every_pod_is_restricted() -> None:
    """Check that every pod has the restricted security context, requests, limits and the NetworkPolicies' label."""
    fields = {
        (name, workload): list_unrestricted_fields(pod)
        for name in OVERLAYS
        for workload, pod in get_pod_templates(render_overlay(name)).items()
    }

    assert fields
    assert {place: found for place, found in fields.items() if found} == {}


@pytest.mark.parametrize("name", OVERLAYS)
def test_startup_of_pod_may_take_two_minutes(name: str) -> None:
    """Check that the kubelet allows two minutes for a pod's startup, because many pods may start on a busy node.

    A Knative Service has no startup probe, which would delay each cold start by a second. Its readiness probe has no
    period, so that Serving probes every 50 ms. The readiness probe must not wait for the API server, because it would
    time out.
    """
    for pod in get_pod_templates(render_overlay(name)).values():
        for container in pod["spec"]["containers"]:
            liveness = container["livenessProbe"]
            startup = dict(container.get("startupProbe", liveness))
            duration = startup.pop("periodSeconds") * startup.pop("failureThreshold")
            assert startup.pop("initialDelaySeconds", 0) + duration == 120
            assert startup.items() <= liveness.items()
            if container["name"] == "user-container":
                assert "startupProbe" not in container
                assert container["readinessProbe"] == {"httpGet": liveness["httpGet"], "successThreshold": 1}


@pytest.mark.parametrize("name", OVERLAYS)
def test_podsource_probes_use_configured_port(name: str) -> None:
    """Check that PodSource's probes use the port that is set in its environment."""
    (container,) = get_pod_templates(render_overlay(name))["podsource"]["spec"]["containers"]
    environment = {variable["name"]: variable.get("value") for variable in container["env"]}

    assert environment == {"PORT": "8080", "SIGNING_KEY": None}
    assert [port["containerPort"] for port in container["ports"]] == [8080]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": 8080}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8080}


def test_api_server_adds_no_numeric_default_to_podsource_template(knative_cluster: LocalCluster) -> None:
    """Check that the API server adds no numeric default to PodSource's pod template.

    Otherwise Knative's ContainerSource controller would rewrite its Deployment, and remove the sink that SinkBinding
    has set. The controller's comparison ignores absent strings, lists and pointers, but not numbers
    (`equality.Semantic.DeepDerivative`).
    """
    template = get_pod_templates(render_overlay("plain"))["podsource"]
    spec = {"selector": {"matchLabels": template["metadata"]["labels"]}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "podsource"}, "spec": spec}
    created = knative_cluster.kubectl(
        "create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(deployment)
    )

    added = find_numbers(json.loads(created.stdout)["spec"]["template"]) - find_numbers(template)

    assert added == {("spec", "terminationGracePeriodSeconds", 30)}, "Knative would rewrite the Deployment"


def find_numbers(value: object, *path: str) -> set[tuple[str | int, ...]]:
    """Return each number in the value, as the path to the number followed by the number itself."""
    if isinstance(value, Mapping):
        return {number_path for key, child in value.items() for number_path in find_numbers(child, *path, key)}
    if isinstance(value, list):
        return {
            number_path for index, child in enumerate(value) for number_path in find_numbers(child, *path, str(index))
        }
    return {(*path, value)} if isinstance(value, int) and not isinstance(value, bool) else set()


@pytest.mark.parametrize("name", OVERLAYS_WITH_FUNCTIONS)
def test_directories_written_by_pods_are_volumes(name: str) -> None:
    """Check that /tmp (for gunicorn) and the journal's directory are volumes, as the root file system is read-only."""
    for workload, pod in get_pod_templates(render_overlay(name)).items():
        if workload in OTHER_WORKLOADS:
            continue
        container = pod["spec"]["containers"][0]
        mount_paths = {mount["mountPath"] for mount in container["volumeMounts"]}
        journal_files = [Path(variable["value"]) for variable in container["env"] if variable["name"] == "JOURNAL"]
        assert "/tmp" in mount_paths  # noqa: S108
        assert all(str(file.parent) in mount_paths for file in journal_files)
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in pod["spec"]["volumes"]
        }


def read_thread_count(container: Manifest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of gunicorn threads in this container."""
    monkeypatch.delenv("FUNCTION", raising=False)
    for variable in container["env"]:
        if variable["name"] == "FUNCTION":
            monkeypatch.setenv("FUNCTION", variable["value"])
    return int(runpy.run_path(str(ROOT / "functions" / "gunicorn.conf.py"))["threads"])


@pytest.mark.parametrize("name", [name for name in OVERLAYS_WITH_FUNCTIONS if name != "plain"])
def test_knative_services_have_scale_bounds_and_are_cluster_local(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that Knative Services are cluster-local, with scale bounds and gunicorn's thread count as concurrency."""
    services = [service for service in filter_by_kind(render_overlay(name), "Service") if service["apiVersion"] != "v1"]
    for service in services:
        template = service["spec"]["template"]
        annotations = template["metadata"]["annotations"]
        scale_limits = [int(annotations[f"autoscaling.knative.dev/{bound}-scale"]) for bound in ("min", "max")]
        assert 1 <= scale_limits[0] <= scale_limits[1]
        threads = read_thread_count(template["spec"]["containers"][0], monkeypatch)
        assert template["spec"]["containerConcurrency"] == threads
        assert service["metadata"]["labels"]["networking.knative.dev/visibility"] == "cluster-local"


def test_coalescing_functions_have_session_affinity() -> None:
    """Design rule 8: functions that coalesce hints in their process have session affinity, so one pod gets all hints.

    The other pod is used only while that pod is unavailable.
    """
    expected = {name for name, function in FUNCTIONS.items() if function.coalescing and name not in OPT_IN_STEPS} | {
        "status"
    }
    services = filter_by_kind(render_overlay("plain"), "Service")

    assert {service["metadata"]["name"] for service in services if "sessionAffinity" in service["spec"]} == expected
    assert {service["spec"].get("sessionAffinity", "ClientIP") for service in services} == {"ClientIP"}


def is_limited_to_one_pod(workload: Manifest) -> bool:
    """Return whether the Deployment has one replica, or the Knative Service scales to at most one pod."""
    annotations = workload["spec"]["template"]["metadata"].get("annotations", {})
    replicas, max_scale = workload["spec"].get("replicas"), annotations.get("autoscaling.knative.dev/max-scale")
    return bool(replicas == 1 or max_scale == "1")


def test_journal_has_only_one_writer() -> None:
    """Check that `record` has one replica, because SQLite's lock does not work across pods with separate disks."""
    recorders = [
        (name, manifest)
        for name in OVERLAYS
        for manifest in render_overlay(name)
        if manifest["metadata"]["name"] in ("record", "functions") and "template" in manifest.get("spec", {})
    ]

    assert recorders
    assert {
        (name, get_identity(workload)) for name, workload in recorders if not is_limited_to_one_pod(workload)
    } == set()


def test_pods_of_function_record_share_no_volume(tmp_path: Path) -> None:
    """Check that two pods of `record` do not share a PersistentVolumeClaim.

    Only one node at a time can use the volume of the component `journal`, so a second pod would never start.
    """

    def write_overlay(*component_names: str) -> Path:
        manifests_path = os.path.relpath(MANIFESTS, tmp_path.resolve())
        components = [f"{manifests_path}/components/{name}" for name in component_names]
        kustomization = {"resources": [f"{manifests_path}/overlays/plain"], "components": components}
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return tmp_path

    objects = render(write_overlay("journal", "postgresql"))
    [record] = [
        deployment for deployment in filter_by_kind(objects, "Deployment") if deployment["metadata"]["name"] == "record"
    ]
    assert record["spec"]["replicas"] == 2
    assert not any("persistentVolumeClaim" in volume for volume in record["spec"]["template"]["spec"]["volumes"])

    command = [str(build.ensure_programs() / "kubectl"), "kustomize", str(write_overlay("postgresql", "journal"))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode
    assert "/spec/replicas" in result.stderr


@pytest.mark.parametrize("name", OVERLAYS_WITH_FUNCTIONS)
def test_every_function_has_address_of_function_record(name: str) -> None:
    """Check that every function has the address of `record`, which is local if one process serves all functions."""
    record_urls = {
        workload: {
            variable["value"]
            for variable in pod["spec"]["containers"][0].get("env", [])
            if variable["name"] == "RECORD"
        }
        for workload, pod in get_pod_templates(render_overlay(name)).items()
        if workload not in OTHER_WORKLOADS
    }

    if name in ONE_SERVICE_PER_FUNCTION:
        assert record_urls.pop("record") == set()
        assert record_urls == {workload: {"http://record.node-maintenance.svc/record"} for workload in record_urls}
    else:
        separate_workloads = {"renew-certificates"} & record_urls.keys()
        assert all(
            record_urls.pop(workload) == {"http://functions.node-maintenance.svc/record"}
            for workload in separate_workloads
        )
        assert list(record_urls.values()) == [{"http://127.0.0.1:8080/record"}]


@pytest.mark.parametrize("name", OVERLAYS)
def test_functions_that_emit_several_events_have_address_of_broker(name: str) -> None:
    """Check that functions that may emit several events have the Broker's address.

    A reply contains only one event, but `resync` and `guard` can emit one event for each maintenance. The SinkBinding
    sets the address only in the Service that func creates.
    """
    objects = render_overlay(name)
    (broker,) = filter_by_kind(objects, "Broker")
    (binding,) = filter_by_kind(objects, "SinkBinding")
    selected_labels = binding["spec"]["subject"]["selector"]["matchLabels"].items()
    sinks = {
        workload["metadata"]["name"]: variable["value"]
        for workload in (*filter_by_kind(objects, "Service"), *filter_by_kind(objects, "Deployment"))
        if "template" in workload["spec"]
        for variable in workload["spec"]["template"]["spec"]["containers"][0]["env"]
        if variable["name"] == "K_SINK"
    }

    assert binding["spec"]["sink"]["ref"]["kind"] == "Broker"
    assert (
        binding["spec"]["subject"]["namespace"] == binding["metadata"]["namespace"] == broker["metadata"]["namespace"]
    )
    assert not [item for item in objects if selected_labels <= (item["metadata"].get("labels") or {}).items()]
    if name == "func":
        deploy = yaml.safe_load((ROOT / "func.yaml").read_text())["deploy"]
        assert selected_labels <= {label["key"]: label["value"] for label in deploy["labels"]}.items()
        assert sinks == {}
    elif name in ONE_SERVICE_PER_FUNCTION:
        assert set(sinks) == {"guard", "resync", *(["resync-runs"] if name == MUTEX_OVERLAY else [])}
    else:
        assert len(sinks) == 1
    assert all(f"{broker['metadata']['namespace']}" in sink for sink in sinks.values())


@pytest.mark.parametrize("served_by", ["services", "compact", "plain"])
def test_sinkbinding_of_tokens_selects_functions_that_post_events(served_by: str, tmp_path: Path) -> None:
    """Check that the SinkBinding of `tokens` selects exactly the functions that have the Broker's address."""
    overlay = pod_install.write_overlay(tmp_path, [served_by, "inmemory", "tokens"], ROOT / "manifests" / "base")
    objects = render(overlay)
    (binding,) = filter_by_kind(objects, "SinkBinding")
    subject = binding["spec"]["subject"]

    def list_names(label: str) -> set[str]:
        return {item["metadata"]["name"] for item in objects if label in (item["metadata"].get("labels") or {})}

    bound = [item for item in objects if "nodemaintenance.dev/token" in (item["metadata"].get("labels") or {})]
    assert list_names("nodemaintenance.dev/token") == list_names("nodemaintenance.dev/binds") != set()
    assert {(item["apiVersion"], item["kind"]) for item in bound} == {(subject["apiVersion"], subject["kind"])}


def test_every_referenced_object_exists() -> None:
    """Check that each object to which a Trigger, source or Broker refers is in the same overlay and namespace."""
    references = {
        name: [ref for manifest in render_overlay(name) for ref in find_references(manifest.get("spec", {}))]
        for name in OVERLAYS
    }
    existing = {name: {get_identity(manifest) for manifest in render_overlay(name)} for name in OVERLAYS}
    service_name = yaml.safe_load((ROOT / "func.yaml").read_text())["name"]
    # The func CLI deploys this Service.
    existing["func"].add(("serving.knative.dev/v1", "Service", "node-maintenance", service_name))
    missing = {
        name: {get_identity({**ref, "metadata": ref}) for ref in refs} - existing[name]
        for name, refs in references.items()
    }

    assert {name: len(refs) for name, refs in references.items() if len(refs) <= 25} == {}
    assert {name: identities for name, identities in missing.items() if identities} == {}


def find_references(value: Any) -> Iterator[Manifest]:
    """Yield all `ref` fields of the value at any depth, and the `config` of every Broker."""
    if isinstance(value, list):
        for element in value:
            yield from find_references(element)
    elif isinstance(value, dict):
        for key, child in value.items():
            if key in ("ref", "config") and "kind" in child:
                yield child
            else:
                yield from find_references(child)


@pytest.mark.parametrize("name", INSTALL_OVERLAYS)
def test_uninstall_deletes_only_namespaces_of_product(name: str) -> None:
    """Check that the documented uninstall, which selects namespaces by label, keeps those of other products."""
    namespaces = {
        manifest["metadata"]["name"]
        for manifest in filter_by_kind(render_overlay(name), "Namespace")
        if SHARED_LABEL not in manifest["metadata"].get("labels", {})
    }

    assert f"kubectl delete -k mine -l '!{SHARED_LABEL}'" in (ROOT / "docs/uninstall.md").read_text()
    assert namespaces <= {"node-maintenance", "node-upgrade-mutex-operator"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_objects_are_unique_and_in_install_namespace(name: str) -> None:
    """Check that no object occurs twice, and that all objects except a few Roles are in the install's namespace.

    The Roles and RoleBindings for Leases, Jobs and the Events of nodes are in fixed namespaces.
    """
    identities = [get_identity(manifest) for manifest in render_overlay(name)]
    install_namespace = OVERLAY_NAMESPACES.get(name, "node-maintenance")

    assert len(set(identities)) == len(identities)
    other_namespaces = [
        (kind, namespace) for _, kind, namespace, _ in identities if namespace not in ("", install_namespace)
    ]
    assert all(kind in ("Role", "RoleBinding") for kind, _ in other_namespaces)
    jobs_namespaces = {"node-upgrade-mutex-operator"} if name == MUTEX_OVERLAY else set()
    assert {namespace for _, namespace in other_namespaces} <= {"default", "medik8s-leases", *jobs_namespaces}


@pytest.mark.parametrize(
    ("name", "broker_class", "config_kind"),
    [
        ("knative", "MTChannelBasedBroker", "ConfigMap"),
        ("rabbitmq", "RabbitMQBroker", "RabbitmqBrokerConfig"),
        ("kafka", "Kafka", "ConfigMap"),
    ],
)
def test_overlay_sets_broker_class(name: str, broker_class: str, config_kind: str) -> None:
    """Check that the overlay sets the Broker's class instead of relying on the cluster's default."""
    (broker,) = filter_by_kind(render_overlay(name), "Broker")

    assert broker["metadata"]["annotations"]["eventing.knative.dev/broker.class"] == broker_class
    assert broker["spec"]["config"]["kind"] == config_kind


@pytest.mark.parametrize("name", [name for name in OVERLAYS if name not in ("rabbitmq", "kafka")])
def test_in_memory_channel_delivers_asynchronously(name: str) -> None:
    """Check that the in-memory channel delivers asynchronously, because it would otherwise serialize all events.

    The Broker copies its annotation to the channel.
    """
    (broker,) = filter_by_kind(render_overlay(name), "Broker")

    assert broker["metadata"]["annotations"]["messaging.knative.dev/async-handler"] == "true"


@pytest.mark.parametrize(
    ("name", "annotations"),
    [
        ("rabbitmq", {"rabbitmq.eventing.knative.dev/parallelism": "20"}),
        ("kafka", {"kafka.eventing.knative.dev/delivery.order": "ordered"}),
    ],
)
def test_every_trigger_has_delivery_annotations_of_broker(name: str, annotations: dict[str, str]) -> None:
    """Check that Triggers configure the delivery of RabbitMQ (parallel) and Kafka (ordered by partition key)."""
    for trigger in filter_by_kind(render_overlay(name), "Trigger"):
        assert trigger["metadata"]["annotations"] == annotations


def test_rabbitmq_keeps_events_in_quorum_queues() -> None:
    """Check that RabbitMQ uses quorum queues, which survive the loss of a RabbitMQ node."""
    (config,) = filter_by_kind(render_overlay("rabbitmq"), "RabbitmqBrokerConfig")

    assert config["spec"]["queueType"] == "quorum"


TICK_DRIVEN_FUNCTIONS = (
    *("resync", "resync-runs", "renew-certificates", "migrate", "protect", "label-cpu", "publish-conditions"),
    "notify-owners",
)
DELIVERY_POLICIES = {
    "record": (40, "linear", "PT1S", "PT10S"),
    **dict.fromkeys(TICK_DRIVEN_FUNCTIONS, (2, "exponential", "PT0.5S", "PT4S")),
}
"""Delivery policies of the functions without a dead letter sink: retries, backoff policy, delay and timeout."""


def get_delivery(trigger: Manifest) -> tuple[Any, ...]:
    """Return the Trigger's retries, backoff policy, delay, timeout and dead letter sink."""
    delivery = trigger["spec"].get("delivery", {})
    policy_fields = ("retry", "backoffPolicy", "backoffDelay", "timeout")
    return (*(delivery.get(field) for field in policy_fields), delivery.get("deadLetterSink", {}).get("uri"))


def get_required_delivery(trigger: Manifest) -> tuple[Any, ...]:
    """Return the delivery that the Trigger's function requires, in the form of `get_delivery`."""
    name = trigger["metadata"]["labels"]["nodemaintenance.dev/function"]
    if name in DELIVERY_POLICIES:
        return (*DELIVERY_POLICIES[name], None)
    return (40, "linear", "PT0.25S", "PT10S", "/record")


def test_every_trigger_has_delivery_policy() -> None:
    """Check that each Trigger sets retries, backoff, timeout and, unless the next tick suffices, a dead letter sink.

    The delivery of a tick ends before the next tick. All other retries have short delays, so that they succeed soon
    after the function, or the database of `record`, is available again. RabbitMQ closes the channel of an event after
    half an hour (`consumer_timeout`). If each attempt times out, all retries together take at most 20 minutes.
    """
    triggers = [(name, trigger) for name in OVERLAYS for trigger in filter_by_kind(render_overlay(name), "Trigger")]
    faults = {
        (name, trigger["metadata"]["name"]): get_delivery(trigger)
        for name, trigger in triggers
        if get_delivery(trigger) != get_required_delivery(trigger)
    }

    assert triggers
    assert faults == {}


@pytest.mark.parametrize("name", INSTALL_OVERLAYS)
def test_network_policies_admit_only_broker_and_serving(name: str) -> None:
    """Check that NetworkPolicies deny traffic to the product's pods, except from the Broker and Knative Serving.

    The functions reach `record` directly, unless one process serves all of them. RabbitMQ's ingress runs in the
    product's namespace and accepts events from its sources and functions.
    """
    policies = {
        policy["metadata"]["name"]: policy["spec"] for policy in filter_by_kind(render_overlay(name), "NetworkPolicy")
    }
    # The policy `to-admission` admits all clients, because the API server's address is unknown.
    to_admission = policies.pop("to-admission", None)
    if to_admission:
        assert to_admission["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8443}]}]
    ingress_peers = [
        peer for policy in policies.values() for rule in policy.get("ingress", []) for peer in rule["from"]
    ]

    internal_policies = {"from-serving"} if name != "plain" else set()
    if name not in ("compact", "func", "hyperconverged"):
        internal_policies |= {"from-functions"}
    broker = f"from-{name if name in ('rabbitmq', 'kafka') else 'inmemory'}"
    assert set(policies) == {"closed", broker} | internal_policies | ({"to-broker"} if name == "rabbitmq" else set())
    assert policies["closed"] == {
        "podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "node-maintenance"}},
        "policyTypes": ["Ingress"],
    }
    assert all(rule["ports"] for policy in policies.values() for rule in policy.get("ingress", []))
    assert all(peer.keys() <= {"namespaceSelector", "podSelector"} and peer for peer in ingress_peers)


@pytest.mark.slow
@proves("DRN-15", "DRN-15a", "X-7")
def test_hyperconverged_install_drains_with_oldest_api(install_cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that an install of the overlay `hyperconverged` serves and watches the oldest API group.

    The install runs a complete maintenance with the ServiceAccounts in its namespace.
    """
    objects = render_overlay("hyperconverged")
    sources = filter_by_kind(objects, "ApiServerSource")
    watched = {
        resource["apiVersion"]: get_identity(source)[2]
        for source in sources
        for resource in source["spec"]["resources"]
    }
    install_cluster.kubectl("apply", SKIP_SCHEMA_OPTION, "-k", MANIFESTS / "overlays" / "hyperconverged")

    with RunningInstall(install_cluster, objects, tmp_path):
        check_drain_and_restore(install_cluster)

    assert watched["kubevirt.io/v1alpha1"] == "kubevirt-hyperconverged"
