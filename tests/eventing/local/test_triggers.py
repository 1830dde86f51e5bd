"""Tests that manifests are parsed as Knative does, and refused if the local delivery does not support them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from eventing.local import broker, manifests, sources, triggers
from eventing.local.triggers import EXPONENTIAL, LINEAR, Policy, Trigger
from tests.eventing.local.broker_process import ROOT, document, service, source, trigger

EVENT = {"type": "a", "source": "/s", "kind": "Node", "more": "true"}
FUNCTIONS = "http://functions:80"

FILTERS: dict[str, tuple[dict[str, str], bool]] = {
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


@pytest.mark.parametrize(("attributes", "wanted"), FILTERS.values(), ids=FILTERS)
def test_a_filter_passes_what_knatives_attributes_filter_passes(attributes: dict[str, str], wanted: bool) -> None:
    """Check that every filter attribute must be equal, and that "" matches any value, as in Knative."""
    assert Trigger("t", attributes, "http://x", Policy()).matches(EVENT.get) is wanted


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("PT0.2S", 0.2), ("PT10S", 10), ("PT1M30S", 90), ("P1DT1H", 90000), ("P2W", 1209600), ("PT0,5S", 0.5)],
)
def test_durations_are_iso_8601(text: str, seconds: float) -> None:
    """Check that durations are parsed from weeks to seconds, with decimals."""
    assert triggers.seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10s", "P", "PT", "PT1", "1", "P1Y", "P1M", "-PT1S", "PT1S "])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Check that an invalid duration is refused, including years and months."""
    with pytest.raises(ValueError, match="ISO 8601"):
        triggers.seconds(text)


@pytest.mark.parametrize("text", ["P1Y", "P1M", "P1Y2M3DT4H"])
def test_years_and_months_are_refused_with_the_reason(text: str) -> None:
    """Check that years and months are refused with the reason that they have no fixed length."""
    with pytest.raises(ValueError, match=f"'{text}' has years or months, which have no fixed length: give"):
        triggers.seconds(text)


@pytest.mark.parametrize(
    ("policy", "pauses"),
    [(EXPONENTIAL, [0.2, 0.4, 0.8, 1.6]), (LINEAR, [0.0, 0.2, 0.4, pytest.approx(0.6)])],
)
def test_backoff_follows_knatives_formulas(policy: str, pauses: list[float]) -> None:
    """Check the delays of both backoff policies: delay * 2^n and delay * n, with n counted from 0."""
    assert [Policy(retry=9, backoff=policy, delay=0.2).pause(retries) for retries in range(4)] == pauses
    assert Policy(retry=2000, backoff=policy).pause(1999) == 0.0


def read(folder: Path, *bodies: dict[str, Any]) -> dict[str, Trigger]:
    (folder / "flow.yaml").write_text(yaml.safe_dump_all(bodies))
    return triggers.read(manifests.read([folder]), FUNCTIONS)


def broker_with(delivery: dict[str, Any] | None) -> dict[str, Any]:
    return document("eventing.knative.dev/v1", "Broker", "default", {"delivery": delivery} if delivery else {})


def test_a_trigger_has_its_own_delivery_or_the_brokers_or_knatives_default(tmp_path: Path) -> None:
    """Check that a Trigger without a delivery spec uses the Broker's, or Knative's default.

    The Broker's dead letter sink also applies to a Trigger whose delivery spec has no sink.
    """
    own = trigger("own", delivery={"retry": 1, "backoffPolicy": "linear", "backoffDelay": "PT1S", "timeout": "PT2S"})
    common = broker_with({"retry": 5, "deadLetterSink": service("record")})

    found = read(tmp_path, common, own, trigger("none"))
    alone = read(tmp_path, trigger("none"))

    assert found["own"].policy == Policy(1, LINEAR, 1.0, 2.0, f"{FUNCTIONS}/record")
    assert found["none"].policy == Policy(5, EXPONENTIAL, 0.0, triggers.DEFAULT_TIMEOUT, f"{FUNCTIONS}/record")
    assert alone["none"].policy == triggers.KNATIVE_DEFAULT


@pytest.mark.parametrize(
    ("subscriber", "url"),
    [
        (service("cordon"), f"{FUNCTIONS}/cordon"),
        ({**service("functions"), "uri": "/cordon"}, f"{FUNCTIONS}/cordon"),
        ({"uri": "http://127.0.0.1:1/x"}, "http://127.0.0.1:1/x"),
    ],
    ids=["service", "service and path", "address"],
)
def test_a_destination_is_found_by_service_name_or_address(
    tmp_path: Path, subscriber: dict[str, Any], url: str
) -> None:
    """Check that a destination is resolved from a Service name, a path or a URL; Services are paths of one URL."""
    manifest = trigger("t")
    manifest["spec"]["subscriber"] = subscriber

    assert read(tmp_path, manifest)["t"].url == url


def test_the_projects_own_manifests_can_be_read() -> None:
    """Check that all shipped Triggers and sources can be parsed; other files in their directories are ignored."""
    documents = manifests.read([ROOT / "manifests" / "base", ROOT / "manifests" / "v1alpha1"])

    found = triggers.read(documents, FUNCTIONS)

    assert found["evict-on-more"].attributes == {"more": "true"}
    assert found["cordon-on-maintenance-begun"].policy.retry == 10
    assert {one.name.split(" ")[0] for one in sources.read(documents, None)} >= {"nodes", "tick", "podsource"}


Change = Callable[[dict[str, Any]], object]
TRIGGER: dict[str, Change] = {
    "spec.broker": lambda it: it["spec"].pop("broker"),
    "spec.subscriber": lambda it: it["spec"].pop("subscriber"),
    "spec.subscriber.ref.name": lambda it: it["spec"]["subscriber"]["ref"].pop("name"),
    "spec.subscriber.ref.kind": lambda it: it["spec"]["subscriber"]["ref"].update(kind="Deployment"),
    "spec.subscriber.uri": lambda it: it["spec"].update(subscriber={"uri": "/x"}),
    "spec.filters": lambda it: it["spec"].update(filters=[]),
    "spec.filter.attributes.more": lambda it: it["spec"].update(filter={"attributes": {"more": True}}),
    "spec.delivery.timeout": lambda it: it["spec"]["delivery"].update(timeout="10s"),
    "spec.delivery.timeout is no time": lambda it: it["spec"]["delivery"].update(timeout="PT0S"),
    "spec.delivery.backoffDelay": lambda it: it["spec"]["delivery"].update(backoffDelay="0.2"),
    "spec.delivery.backoffPolicy": lambda it: it["spec"]["delivery"].update(backoffPolicy="cubic"),
    "spec.delivery.retry": lambda it: it["spec"]["delivery"].update(retry="many"),
    "spec.delivery.retryAfterMax": lambda it: it["spec"]["delivery"].update(retryAfterMax="PT1S"),
    "spec.delivery.deadLetterSink": lambda it: it["spec"]["delivery"].update(deadLetterSink={}),
    "spec.delivery.timeout 'P999": lambda it: it["spec"]["delivery"].update(timeout=f"P{'9' * 400}D"),
    "kind": lambda it: it.update(kind="Sequence"),
    "metadata.annotations": lambda it: it["metadata"].update(annotations={triggers.PARALLELISM: "0"}),
}
PING: dict[str, Change] = {
    "spec.schedule": lambda it: it["spec"].update(schedule="* * *"),
    "spec.timezone": lambda it: it["spec"].update(timezone="Mars/Base"),
    "spec.sink.ref.kind": lambda it: it["spec"]["sink"]["ref"].update(kind="Service"),
    "spec.timezone is no time zone known here: 'America'": lambda it: it["spec"].update(timezone="America"),
    "spec.schedule names a time that never comes": lambda it: it["spec"].update(schedule="0 0 31 2 *"),
    "spec.dataBase64": lambda it: it["spec"].update(dataBase64="!"),
    "spec.dataBase64 is not base64": lambda it: it["spec"].update(dataBase64="ä"),
}
API: dict[str, Change] = {
    "spec.mode": lambda it: it["spec"].update(mode="Whole"),
    "spec.resources": lambda it: it["spec"].pop("resources"),
    "spec.resources[0]": lambda it: it["spec"].update(resources=[{"kind": "Node"}]),
    "spec.resources[0] must": lambda it: it["spec"].update(resources=[{"apiVersion": 1, "kind": "Node"}]),
    "spec.filters": lambda it: it["spec"].update(filters=[]),
}


def container(**changes: object) -> Change:
    return lambda it: it["spec"]["template"]["spec"]["containers"][0].update(changes)


CONTAINER: dict[str, Change] = {
    "spec.template.spec.containers": lambda it: it["spec"].update(template={}),
    "spec.template.spec.containers[0].command is": container(command=None),
    "spec.template.spec.containers[0].command must": container(command=5),
    "spec.template.spec.containers[0].command must be": container(command="python -m x"),
    "spec.template.spec.containers[0].args": container(args=[5]),
    "spec.template.spec.containers[0].env must": container(env=5),
    "spec.template.spec.containers[0].env[0]": container(env=[5]),
    "spec.template.spec.containers[0].env[0] must": container(env=[{"value": "x"}]),
    "spec.template.spec.containers[0].env[1]": container(env=[{"name": "a"}, {"name": "b", "value": 5}]),
}
SOUND = {
    "Trigger": trigger("t", delivery={"retry": 1}),
    "PingSource": source("PingSource", "t", schedule="* * * * *"),
    "ApiServerSource": source(
        "ApiServerSource", "t", mode="Resource", resources=[{"apiVersion": "v1", "kind": "Node"}]
    ),
    "ContainerSource": source("ContainerSource", "t", template={"spec": {"containers": [{"command": ["true"]}]}}),
}
WRONG = [
    pytest.param(kind, field, change, id=f"{kind} {field}")
    for kind, table in (
        ("Trigger", TRIGGER),
        ("PingSource", PING),
        ("ApiServerSource", API),
        ("ContainerSource", CONTAINER),
    )
    for field, change in table.items()
]


def run(*arguments: Any) -> tuple[int, str]:
    """Run the broker's command line, and return exit status and output."""
    result = CliRunner().invoke(broker.main, [str(one) for one in arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize(("kind", "field", "change"), WRONG)
def test_a_manifest_that_cannot_be_followed_ends_the_start_with_one_line(
    tmp_path: Path, kind: str, field: str, change: Change
) -> None:
    """Check that an unsupported manifest exits with 1 and one line that names file, object and field."""
    body = copy.deepcopy(SOUND[kind])
    change(body)
    file = tmp_path / "flow.yaml"
    file.write_text(yaml.safe_dump(body))

    status, output = run("--manifests", tmp_path, "--functions", FUNCTIONS, "--database", tmp_path / "d.db")

    assert status == 1
    assert output.startswith(f"Error: {file}: ")
    assert f" t: {field}" in output
    assert output.count("\n") == 1


def test_what_is_there_twice_is_refused(tmp_path: Path) -> None:
    """Check that duplicate Triggers and a second Broker are refused, because they would be ambiguous."""
    with pytest.raises(manifests.ManifestError, match=r"Trigger t: metadata\.name is there twice"):
        read(tmp_path, trigger("t"), trigger("t"))
    with pytest.raises(manifests.ManifestError, match="second Broker"):
        read(tmp_path, broker_with(None), broker_with(None))


def test_a_name_that_is_no_text_is_refused_as_it_is(tmp_path: Path) -> None:
    """Check that a name that YAML parses as a number is refused; it needs quotes."""
    body = trigger("t")
    body["metadata"]["name"] = 5

    with pytest.raises(manifests.ManifestError, match=r"Trigger 5: metadata\.name must be of type str, is 5"):
        read(tmp_path, body)


def test_files_that_are_no_manifests_are_named(tmp_path: Path) -> None:
    """Check that a missing directory and invalid YAML are one-line errors."""
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")

    missing_status, missing = run("--manifests", tmp_path / "no", "--functions", FUNCTIONS)
    broken_status, not_yaml = run("--manifests", broken, "--functions", FUNCTIONS)

    assert (missing_status, broken_status) == (1, 1)
    assert "no such file or folder" in missing
    assert f"{broken}: not YAML" in not_yaml
    assert not_yaml.count("\n") == 1


def test_a_wrong_address_is_a_usage_error(tmp_path: Path) -> None:
    """Check that an invalid address exits with 2, as every invalid option does."""
    listen_status, listen = run("--manifests", tmp_path, "--functions", FUNCTIONS, "--listen", "here")
    functions_status, functions = run("--manifests", tmp_path, "--functions", "127.0.0.1:8080")

    assert (listen_status, functions_status) == (2, 2)
    assert "HOST:PORT" in listen
    assert "not a URL" in functions
