"""Tests of label selectors: a truth table, compared with the API server's results."""

from __future__ import annotations

import pytest

from kube.client.api_errors import Rejected
from kube.client.sync_client import Cluster
from kube.paths import Object
from kube.selectors import matches, parsed, text
from localcluster.cluster import LocalCluster
from tests.workload import Workload

LABELS = [{}, {"app": "db"}, {"app": "web"}, {"tier": "x"}, {"app": "db", "tier": "x"}, {"app": ""}]


def expression(operator: str, *values: str) -> Object:
    return {"matchExpressions": [{"key": "app", "operator": operator, **({"values": list(values)} if values else {})}]}


CASES = [
    pytest.param({"matchLabels": {"app": "db"}}, "app=db", [1, 4], id="matchLabels"),
    pytest.param({"matchLabels": {"app": "db", "tier": "x"}}, "app=db,tier=x", [4], id="both labels"),
    pytest.param({"matchLabels": {"app": ""}}, "app=", [5], id="empty value"),
    pytest.param(expression("In", "db", "web"), "app in (db,web)", [1, 2, 4], id="In"),
    pytest.param(expression("NotIn", "db"), "app notin (db)", [0, 2, 3, 5], id="NotIn"),
    pytest.param(expression("Exists"), "app", [1, 2, 4, 5], id="Exists"),
    pytest.param(expression("DoesNotExist"), "!app", [0, 3], id="DoesNotExist"),
    pytest.param({"matchLabels": {"tier": "x"}, **expression("Exists")}, "tier=x,app", [4], id="labels and expression"),
    pytest.param({}, "", [0, 1, 2, 3, 4, 5], id="empty"),
]


@pytest.fixture(autouse=True)
def _read_anew() -> None:
    """Clear the cache, so that each test parses its selectors itself."""
    parsed.cache_clear()


@pytest.fixture(scope="module")
def listed(installed: LocalCluster, admin: Cluster) -> tuple[Cluster, str]:
    """Create a ConfigMap for each of `LABELS`, named by its index; return the API client and the list's path."""
    work = Workload(installed, admin)
    path = f"/api/v1/namespaces/{work.namespace}/configmaps"
    for number, labels in enumerate(LABELS):
        admin.create(path, {"metadata": {"name": f"{number}", "labels": {"of": "test", **labels}}})
    return admin, path


@pytest.mark.parametrize(("selector", "query", "numbers"), CASES)
def test_our_rules_select(selector: Object, query: str, numbers: list[int]) -> None:
    """NMO-6: the selector, and the one parsed from kubectl's syntax, match the expected labels."""
    for read in (selector, parsed(query)):
        assert [number for number, labels in enumerate(LABELS) if matches(read, labels)] == numbers


@pytest.mark.parametrize(("selector", "query", "numbers"), CASES)
def test_a_selector_selects(selector: Object, query: str, numbers: list[int], listed: tuple[Cluster, str]) -> None:
    """NMO-6: the API server lists the same objects that our rules match."""
    admin, path = listed
    by_server = admin.list(path, labels=f"of=test,{query}".rstrip(","))["items"]

    assert [int(item["metadata"]["name"]) for item in by_server] == numbers


def test_no_selector_selects_nothing() -> None:
    """NMO-6: a missing selector selects nothing, unlike an empty one."""
    assert not matches(None, {"app": "db"})


def test_an_unknown_operator_is_an_error() -> None:
    """NMO-6: an unknown operator is an error and not a mismatch."""
    with pytest.raises(ValueError, match="unknown selector operator 'Gt'"):
        matches(expression("Gt", "1"), {"app": "2"})


@pytest.mark.parametrize(("selector", "query", "_places"), CASES)
def test_a_selector_is_written_as_the_query_takes_it(selector: Object, query: str, _places: list[int]) -> None:
    assert text(selector) == query


@pytest.mark.parametrize(
    "selector", [{"matchlabels": {}}, {"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}]
)
def test_what_no_selector_has_is_refused(selector: Object) -> None:
    with pytest.raises(ValueError, match="unknown"):
        text(selector)


@pytest.mark.parametrize(("_selector", "query", "numbers"), CASES)
def test_a_query_is_read_as_the_server_reads_it(_selector: Object, query: str, numbers: list[int]) -> None:
    """DRN-1a: a query is parsed to a selector that matches the expected labels."""
    assert [number for number, labels in enumerate(LABELS) if matches(parsed(query), labels)] == numbers


WORDS = [
    *("app", " app ", "!app", "! app", "app=db", "app==db", "app = db", "app!=db", "app=", "app=,tier", "app==,tier=x"),
    *(
        "app in (db)",
        "app in(db)",
        "app in ( db , web )",
        "app notin (db,web)",
        "app in (db,)",
        "app in (,)",
        "\tapp=db",
    ),
    *("example.com/app=db", "app=db,tier=x", "app in (db),!tier", "App_1.x=Y_2", "in=in", "in in (in)", "notin"),
    *("app in ()", "app=db,", ",app", "app,,tier", "app=(", "app in db", "app in (db", "=db", "!", "!app=db"),
    *("app=-db", "app=db-", "-app", "a/b/c", "/app", "app=d b", "app db", "app=db;tier=x", "app!db", "app:db"),
    *("x" * 63 + "=a", "x" * 64 + "=a", "a=" + "x" * 63, "a=" + "x" * 64, "Example.com/app=db", "a..b/app=db", "é=a"),
]


@pytest.mark.parametrize("query", WORDS)
def test_a_query_is_readable_when_the_server_can_read_it(query: str, listed: tuple[Cluster, str]) -> None:
    """DRN-1a, DRN-5: a query is valid exactly if the server accepts it, and then selects the same objects.

    Only comparisons with numbers are valid on the server alone.
    """
    admin, path = listed
    try:
        items = [item["metadata"] for item in admin.list(path)["items"]]
        by_server = [item["metadata"]["name"] for item in admin.list(path, labels=query)["items"]]
    except Rejected:
        with pytest.raises(ValueError, match="is no condition on a label"):
            parsed(query)
        return

    assert [item["name"] for item in items if matches(parsed(query), item.get("labels") or {})] == by_server


@pytest.mark.parametrize("query", ["app>1", "app < 1"])
def test_comparisons_are_not_read(query: str) -> None:
    with pytest.raises(ValueError, match="is no condition on a label"):
        parsed(query)


def test_no_query_is_the_selector_of_everything() -> None:
    assert parsed("") == parsed("  ") == {}
