"""Who may post to the Broker, where Knative asks who it is."""

from __future__ import annotations

from pathlib import Path

from functions.app import FUNCTIONS
from localcluster.cluster import LocalCluster
from tests.manifests.rendering import MANIFESTS, Manifest, of_kind, rendered
from tests.manifests.test_console import install

SOURCES = ("ApiServerSource", "PingSource", "ContainerSource", "SinkBinding")
LABEL = "nodemaintenance.dev/function"


def reference(item: Manifest) -> tuple[str, ...]:
    return item["apiVersion"], item["kind"], item["metadata"]["namespace"], item["metadata"]["name"]


def test_who_may_post_is_who_has_something_to_say(tmp_path: Path) -> None:
    """X-2: our sources, what publishes by itself, and each Trigger whose function answers; nobody by a pattern."""
    policies = install(tmp_path, "senders", "certificates/senders")
    objects = rendered(MANIFESTS / "overlays" / "plain")
    answering = [item for item in of_kind(objects, "Trigger") if FUNCTIONS[item["metadata"]["labels"][LABEL]].emits]

    named = [
        tuple(one["ref"][key] for key in ("apiVersion", "kind", "namespace", "name"))
        for policy in policies
        for one in policy["spec"]["from"]
    ]

    assert set(named) == {reference(item) for item in [*of_kind(objects, *SOURCES), *answering]}
    assert len(named) == len(set(named))
    (broker,) = of_kind(objects, "Broker")
    to = {"apiVersion": broker["apiVersion"], "kind": "Broker", "name": broker["metadata"]["name"]}
    assert [[one["ref"] for one in policy["spec"]["to"]] for policy in policies] == [[to], [to]]


def test_knative_s_own_schema_takes_it(knative: LocalCluster) -> None:
    """X-2: every field is one of an EventPolicy; an unknown one would be dropped in silence."""
    policy = (MANIFESTS / "components" / "senders" / "policy.yaml").read_text()
    elsewhere = policy.replace("namespace: node-maintenance", "namespace: default")  # ours is another test's to make

    done = knative.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=elsewhere)

    assert done.stdout == "eventpolicy.eventing.knative.dev/senders created (server dry run)\n"
