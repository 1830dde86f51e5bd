"""What docs/observability.md says can be seen of a real drain is what can be seen."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from eventing.events import TICK
from localcluster.flow import Flow
from tests.chain.scene import Scene

PAGE = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
ROW = re.compile(r"^\| `(nodemaintenance_\w+)` \|([a-z, ]*)\|", re.MULTILINE)
OF_BUCKETS = {"le"}


def documented(page: str) -> dict[str, set[str]]:
    """Metric → labels, by the tables."""
    return {name: set(filter(None, labels.replace(" ", "").split(","))) for name, labels in ROW.findall(page)}


def offered(url: str) -> dict[str, set[str]]:
    """Metric → labels, by /metrics; a counter is documented with its `_total`."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("nodemaintenance_") and not family.name.endswith("_created"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels}
            found[name] = labels - OF_BUCKETS
    return found


def test_the_tables_name_every_metric_and_its_labels(scene: Scene) -> None:
    """After a drain that a budget holds up for a tick: nothing else is offered, and all of it."""
    node, namespace = scene.node(), scene.namespace()
    scene.pods(node, 1, namespace=namespace, labels={"app": "one"})
    scene.budget(namespace, {"app": "one"}, name="strict", allowed=0, minAvailable=1)
    path = scene.maintain(node)
    scene.reaches(path, lambda item: bool((item.get("status") or {}).get("blockedPods")))
    with Flow(scene.product.delivery_log) as flow:
        flow.await_type(TICK, 40, times=2)  # the second one comes when the first has been answered

    functions, delivery = offered(scene.product.functions_url), offered(scene.product.broker_url)
    written = documented(PAGE)
    assert functions.keys() | delivery.keys() == written.keys()
    for name, labels in {**functions, **delivery}.items():
        assert labels <= written[name], name
    assert functions["nodemaintenance_blocked_pods"] == written["nodemaintenance_blocked_pods"]

    scene.delete(path)
    scene.gone(path)
