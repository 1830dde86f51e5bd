"""Tests that manifests are parsed as in Knative, and rejected if the local delivery does not support them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from eventing.local import broker, manifests
from eventing.local.manifests import EXPONENTIAL, LINEAR, DeliveryPolicy, Trigger
from tests.eventing.local.broker_process import (
    ROOT,
    build_manifest,
    build_service_reference,
    build_source,
    build_trigger,
)

SAMPLE_EVENT = {"type": "a", "source": "/s", "kind": "Node", "more": "true"}
FUNCTIONS_URL = "http://functions:80"

FILTER_CASES: dict[str, tuple[dict[str, str], bool]] = {
    "no attributes": ({}, True),
    "equal": ({"type": "a"}, True),
    "other value": ({"type": "b"}, False),
    "prefix only": ({"source": "/"}, False),
    "other case": ({"kind": "node"}, False),
    "all equal": ({"type": "a", "kind": "Node", "more": "true"}, True),
    "one of two": ({"type": "a", "kind": "Pod"}, False),
    "extension absent": ({"less": "true"}, False),
    "any value": ({"kind": ""}, True),
    "any value of an absent extension": ({"less": ""}, False),
    "any value of an absent core attribute": ({"subject": ""}, True),
    "absent core attribute": ({"subject": "x"}, False),
}


@pytest.mark.parametrize(("attributes", "is_match"), FILTER_CASES.values(), ids=FILTER_CASES)
def test_filter_matches_attributes_as_in_knative(attributes: dict[str, str], is_match: bool) -> None:
    """Check that every attribute of the filter must match, and that "" matches any value, as in Knative."""
    assert Trigger("t", attributes, "http://x", DeliveryPolicy()).matches(SAMPLE_EVENT.get) is is_match


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("PT0.2S", 0.2), ("PT10S", 10), ("PT1M30S", 90), ("P1DT1H", 90000), ("P2W", 1209600), ("PT0,5S", 0.5)],
)
def test_iso_8601_durations_are_parsed(text: str, seconds: float) -> None:
    """Check that durations may have units from weeks to seconds, and decimal fractions."""
    assert manifests.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10s", "P", "PT", "PT1", "1", "P1Y", "P1M", "-PT1S", "PT1S "])
def test_invalid_duration_is_rejected(text: str) -> None:
    """Check that an invalid or unsupported duration is rejected."""
    with pytest.raises(ValueError, match="ISO 8601"):
        manifests.parse_duration(text)


@pytest.mark.parametrize("text", ["P1Y", "P1M", "P1Y2M3DT4H"])
def test_duration_in_years_or_months_is_rejected_with_reason(text: str) -> None:
    """Check that the error about a duration in years or months explains that these units have no fixed length."""
    with pytest.raises(ValueError, match=f"'{text}' has years or months, which have no fixed length: use"):
        manifests.parse_duration(text)


@pytest.mark.parametrize(
    ("policy", "delays"),
    [(EXPONENTIAL, [0.2, 0.4, 0.8, 1.6]), (LINEAR, [0.0, 0.2, 0.4, pytest.approx(0.6)])],
)
def test_backoff_follows_knatives_formulas(policy: str, delays: list[float]) -> None:
    """Check the delays of both backoff policies: delay * 2^n and delay * n, with n counted from 0."""
    assert [
        DeliveryPolicy(retry=9, backoff=policy, backoff_delay_seconds=0.2).get_backoff_seconds(retries)
        for retries in range(4)
    ] == delays
    assert DeliveryPolicy(retry=2000, backoff=policy).get_backoff_seconds(1999) == 0.0


def parse_triggers(directory: Path, *bodies: dict[str, Any]) -> dict[str, Trigger]:
    (directory / "flow.yaml").write_text(yaml.safe_dump_all(bodies))
    return manifests.parse_triggers(manifests.read_documents([directory]), FUNCTIONS_URL)


def build_broker(delivery: dict[str, Any] | None) -> dict[str, Any]:
    return build_manifest("eventing.knative.dev/v1", "Broker", "default", {"delivery": delivery} if delivery else {})


def test_trigger_without_delivery_spec_uses_default_of_broker_or_knative(tmp_path: Path) -> None:
    """Check that a Trigger without a delivery spec uses the Broker's delivery spec, or else Knative's defaults.

    The Broker's dead letter sink also applies to a Trigger whose own delivery spec has no dead letter sink.
    """
    own_trigger = build_trigger(
        "own", delivery={"retry": 1, "backoffPolicy": "linear", "backoffDelay": "PT1S", "timeout": "PT2S"}
    )
    broker_manifest = build_broker({"retry": 5, "deadLetterSink": build_service_reference("record")})

    parsed = parse_triggers(tmp_path, broker_manifest, own_trigger, build_trigger("none"))
    without_broker = parse_triggers(tmp_path, build_trigger("none"))

    assert parsed["own"].policy == DeliveryPolicy(1, LINEAR, 1.0, 2.0, f"{FUNCTIONS_URL}/record")
    assert parsed["none"].policy == DeliveryPolicy(
        5, EXPONENTIAL, 0.0, manifests.DEFAULT_TIMEOUT_SECONDS, f"{FUNCTIONS_URL}/record"
    )
    assert without_broker["none"].policy == manifests.KNATIVE_DEFAULT


@pytest.mark.parametrize(
    ("subscriber", "url"),
    [
        (build_service_reference("cordon"), f"{FUNCTIONS_URL}/cordon"),
        ({**build_service_reference("functions"), "uri": "/cordon"}, f"{FUNCTIONS_URL}/cordon"),
        ({"uri": "http://127.0.0.1:1/x"}, "http://127.0.0.1:1/x"),
    ],
    ids=["service", "service and path", "address"],
)
def test_destination_is_resolved_by_service_name_or_url(tmp_path: Path, subscriber: dict[str, Any], url: str) -> None:
    """Check that a destination may be a Service, a path or a URL; a Service becomes a path below the functions' URL."""
    manifest = build_trigger("t")
    manifest["spec"]["subscriber"] = subscriber

    assert parse_triggers(tmp_path, manifest)["t"].subscriber_url == url


def test_shipped_manifests_can_be_parsed() -> None:
    """Check that all shipped Triggers and sources can be parsed, and that manifests of other kinds are ignored."""
    documents = manifests.read_documents([ROOT / "manifests" / "base", ROOT / "manifests" / "v1alpha1"])

    parsed = manifests.parse_triggers(documents, FUNCTIONS_URL)

    assert parsed["evict-on-more"].attributes == {"more": "true"}
    assert parsed["cordon-on-maintenance-begun"].policy.retry == 40
    assert {source.name.split(" ")[0] for source in broker.parse_sources(documents, None)} >= {
        "nodes",
        "tick",
        "podsource",
    }


ChangeManifest = Callable[[dict[str, Any]], object]
TRIGGER_FAULTS: dict[str, ChangeManifest] = {
    "spec.broker": lambda trigger: trigger["spec"].pop("broker"),
    "spec.subscriber": lambda trigger: trigger["spec"].pop("subscriber"),
    "spec.subscriber.ref.name": lambda trigger: trigger["spec"]["subscriber"]["ref"].pop("name"),
    "spec.subscriber.ref.kind": lambda trigger: trigger["spec"]["subscriber"]["ref"].update(kind="Deployment"),
    "spec.subscriber.uri": lambda trigger: trigger["spec"].update(subscriber={"uri": "/x"}),
    "spec.filters": lambda trigger: trigger["spec"].update(filters=[]),
    "spec.filter.attributes.more": lambda trigger: trigger["spec"].update(filter={"attributes": {"more": True}}),
    "spec.delivery.timeout": lambda trigger: trigger["spec"]["delivery"].update(timeout="10s"),
    "spec.delivery.timeout must be greater than 0": lambda trigger: trigger["spec"]["delivery"].update(timeout="PT0S"),
    "spec.delivery.backoffDelay": lambda trigger: trigger["spec"]["delivery"].update(backoffDelay="0.2"),
    "spec.delivery.backoffPolicy": lambda trigger: trigger["spec"]["delivery"].update(backoffPolicy="cubic"),
    "spec.delivery.retry": lambda trigger: trigger["spec"]["delivery"].update(retry="many"),
    "spec.delivery.retryAfterMax": lambda trigger: trigger["spec"]["delivery"].update(retryAfterMax="PT1S"),
    "spec.delivery.deadLetterSink": lambda trigger: trigger["spec"]["delivery"].update(deadLetterSink={}),
    "spec.delivery.timeout 'P999": lambda trigger: trigger["spec"]["delivery"].update(timeout=f"P{'9' * 400}D"),
    "kind": lambda trigger: trigger.update(kind="Sequence"),
    "metadata.annotations": lambda trigger: trigger["metadata"].update(
        annotations={manifests.PARALLELISM_ANNOTATION: "0"}
    ),
}
PING_SOURCE_FAULTS: dict[str, ChangeManifest] = {
    "spec.schedule": lambda document: document["spec"].update(schedule="* * *"),
    "spec.timezone": lambda document: document["spec"].update(timezone="Mars/Base"),
    "spec.sink.ref.kind": lambda document: document["spec"]["sink"]["ref"].update(kind="Service"),
    "spec.timezone is not a known time zone: 'America'": lambda document: document["spec"].update(timezone="America"),
    "spec.schedule matches no time": lambda document: document["spec"].update(schedule="0 0 31 2 *"),
    "spec.dataBase64": lambda document: document["spec"].update(dataBase64="!"),
    "spec.dataBase64 is not base64": lambda document: document["spec"].update(dataBase64="ä"),
}
API_SERVER_SOURCE_FAULTS: dict[str, ChangeManifest] = {
    "spec.mode": lambda document: document["spec"].update(mode="Whole"),
    "spec.resources": lambda document: document["spec"].pop("resources"),
    "spec.resources[0]": lambda document: document["spec"].update(resources=[{"kind": "Node"}]),
    "spec.resources[0] must": lambda document: document["spec"].update(resources=[{"apiVersion": 1, "kind": "Node"}]),
    "spec.filters": lambda document: document["spec"].update(filters=[]),
}


def create_container_changer(**changes: object) -> ChangeManifest:
    return lambda document: document["spec"]["template"]["spec"]["containers"][0].update(changes)


CONTAINER_SOURCE_FAULTS: dict[str, ChangeManifest] = {
    "spec.template.spec.containers": lambda document: document["spec"].update(template={}),
    "spec.template.spec.containers[0].command is": create_container_changer(command=None),
    "spec.template.spec.containers[0].command must": create_container_changer(command=5),
    "spec.template.spec.containers[0].command must be": create_container_changer(command="python -m x"),
    "spec.template.spec.containers[0].args": create_container_changer(args=[5]),
    "spec.template.spec.containers[0].env must": create_container_changer(env=5),
    "spec.template.spec.containers[0].env[0]": create_container_changer(env=[5]),
    "spec.template.spec.containers[0].env[0] must": create_container_changer(env=[{"value": "x"}]),
    "spec.template.spec.containers[0].env[1]": create_container_changer(env=[{"name": "a"}, {"name": "b", "value": 5}]),
}
VALID_MANIFESTS = {
    "Trigger": build_trigger("t", delivery={"retry": 1}),
    "PingSource": build_source("PingSource", "t", schedule="* * * * *"),
    "ApiServerSource": build_source(
        "ApiServerSource", "t", mode="Resource", resources=[{"apiVersion": "v1", "kind": "Node"}]
    ),
    "ContainerSource": build_source("ContainerSource", "t", template={"spec": {"containers": [{"command": ["true"]}]}}),
}
INVALID_CASES = [
    pytest.param(kind, field, change, id=f"{kind} {field}")
    for kind, faults_by_field in (
        ("Trigger", TRIGGER_FAULTS),
        ("PingSource", PING_SOURCE_FAULTS),
        ("ApiServerSource", API_SERVER_SOURCE_FAULTS),
        ("ContainerSource", CONTAINER_SOURCE_FAULTS),
    )
    for field, change in faults_by_field.items()
]


def run_broker(*arguments: Any) -> tuple[int, str]:
    """Run the broker with these command-line arguments, and return its exit status and output."""
    result = CliRunner().invoke(broker.main, [str(argument) for argument in arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize(("kind", "field", "change_manifest"), INVALID_CASES)
def test_error_for_unsupported_manifest_names_file_object_and_field(
    tmp_path: Path, kind: str, field: str, change_manifest: ChangeManifest
) -> None:
    """Check that the broker exits with 1 and one line that names file, object and field of an unsupported manifest."""
    body = copy.deepcopy(VALID_MANIFESTS[kind])
    change_manifest(body)
    file = tmp_path / "flow.yaml"
    file.write_text(yaml.safe_dump(body))

    status, output = run_broker("--manifests", tmp_path, "--functions", FUNCTIONS_URL, "--database", tmp_path / "d.db")

    assert status == 1
    assert output.startswith(f"Error: {file}: ")
    assert f" t: {field}" in output
    assert output.count("\n") == 1


def test_duplicate_triggers_and_brokers_are_rejected(tmp_path: Path) -> None:
    """Check that duplicate Triggers and a second Broker are rejected as ambiguous."""
    with pytest.raises(manifests.ManifestError, match=r"Trigger t: metadata\.name is not unique"):
        parse_triggers(tmp_path, build_trigger("t"), build_trigger("t"))
    with pytest.raises(manifests.ManifestError, match="second Broker"):
        parse_triggers(tmp_path, build_broker(None), build_broker(None))


def test_unquoted_numeric_name_is_rejected(tmp_path: Path) -> None:
    """Check that an unquoted name that YAML parses as a number is rejected."""
    body = build_trigger("t")
    body["metadata"]["name"] = 5

    with pytest.raises(manifests.ManifestError, match=r"Trigger 5: metadata\.name must be of type str, is 5"):
        parse_triggers(tmp_path, body)


def test_error_names_missing_or_invalid_manifest_file(tmp_path: Path) -> None:
    """Check that a missing directory and invalid YAML are reported in one line."""
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")

    missing_status, missing_output = run_broker("--manifests", tmp_path / "no", "--functions", FUNCTIONS_URL)
    broken_status, broken_output = run_broker("--manifests", broken, "--functions", FUNCTIONS_URL)

    assert (missing_status, broken_status) == (1, 1)
    assert "no such file or directory" in missing_output
    assert f"{broken}: invalid YAML" in broken_output
    assert broken_output.count("\n") == 1


def test_invalid_address_is_usage_error(tmp_path: Path) -> None:
    """Check that an invalid address is a usage error with exit status 2, like any invalid option value."""
    listen_status, listen_output = run_broker("--manifests", tmp_path, "--functions", FUNCTIONS_URL, "--listen", "here")
    functions_status, functions_output = run_broker("--manifests", tmp_path, "--functions", "127.0.0.1:8080")

    assert (listen_status, functions_status) == (2, 2)
    assert "HOST:PORT" in listen_output
    assert "not a URL" in functions_output
