"""Tests for label selectors, whose expected results are compared with those of the API server."""

from __future__ import annotations

import pytest

from kube.client.api_errors import Rejected
from kube.client.sync_client import SyncClient
from kube.paths import Object
from kube.selectors import format_selector, matches, parse_selector
from localcluster.cluster import LocalCluster
from tests.workload import Workload

LABEL_SETS = [{}, {"app": "db"}, {"app": "web"}, {"tier": "x"}, {"app": "db", "tier": "x"}, {"app": ""}]


def make_expression_selector(operator: str, *values: str) -> Object:
    return {"matchExpressions": [{"key": "app", "operator": operator, **({"values": list(values)} if values else {})}]}


SELECTOR_CASES = [
    pytest.param({"matchLabels": {"app": "db"}}, "app=db", [1, 4], id="matchLabels"),
    pytest.param({"matchLabels": {"app": "db", "tier": "x"}}, "app=db,tier=x", [4], id="both labels"),
    pytest.param({"matchLabels": {"app": ""}}, "app=", [5], id="empty value"),
    pytest.param(make_expression_selector("In", "db", "web"), "app in (db,web)", [1, 2, 4], id="In"),
    pytest.param(make_expression_selector("NotIn", "db"), "app notin (db)", [0, 2, 3, 5], id="NotIn"),
    pytest.param(make_expression_selector("Exists"), "app", [1, 2, 4, 5], id="Exists"),
    pytest.param(make_expression_selector("DoesNotExist"), "!app", [0, 3], id="DoesNotExist"),
    pytest.param(
        {"matchLabels": {"tier": "x"}, **make_expression_selector("Exists")},
        "tier=x,app",
        [4],
        id="labels and expression",
    ),
    pytest.param({}, "", [0, 1, 2, 3, 4, 5], id="empty"),
]


@pytest.fixture(autouse=True)
def _clear_selector_cache() -> None:
    """Clear the cache of parsed selectors, so that each test parses its selectors again."""
    parse_selector.cache_clear()


@pytest.fixture(scope="module")
def labelled_configmaps(installed_cluster: LocalCluster, admin_client: SyncClient) -> tuple[SyncClient, str]:
    """Create a ConfigMap for each of `LABEL_SETS`, named by its index; return the API client and the list path."""
    workload = Workload(installed_cluster, admin_client)
    path = f"/api/v1/namespaces/{workload.namespace}/configmaps"
    for number, labels in enumerate(LABEL_SETS):
        admin_client.create(path, {"metadata": {"name": f"{number}", "labels": {"of": "test", **labels}}})
    return admin_client, path


@pytest.mark.parametrize(("selector", "query", "expected_indexes"), SELECTOR_CASES)
def test_selector_object_and_query_match_same_labels(selector: Object, query: str, expected_indexes: list[int]) -> None:
    """NMO-6: a selector object and a selector query in kubectl's syntax match the same expected labels."""
    for parsed in (selector, parse_selector(query)):
        assert [number for number, labels in enumerate(LABEL_SETS) if matches(parsed, labels)] == expected_indexes


@pytest.mark.parametrize(("selector", "query", "expected_indexes"), SELECTOR_CASES)
def test_api_server_selects_same_objects(
    selector: Object, query: str, expected_indexes: list[int], labelled_configmaps: tuple[SyncClient, str]
) -> None:
    """NMO-6: the API server lists the same objects that the function `matches` selects."""
    client, path = labelled_configmaps
    selected_by_server = client.list(path, label_selector=f"of=test,{query}".rstrip(","))["items"]

    assert [int(configmap["metadata"]["name"]) for configmap in selected_by_server] == expected_indexes


def test_missing_selector_matches_no_labels() -> None:
    """NMO-6: a missing selector selects nothing, unlike an empty one."""
    assert not matches(None, {"app": "db"})


def test_selector_with_unknown_operator_raises_error() -> None:
    """NMO-6: a selector with an unknown operator raises an error instead of matching nothing."""
    with pytest.raises(ValueError, match="unknown selector operator 'Gt'"):
        matches(make_expression_selector("Gt", "1"), {"app": "2"})


@pytest.mark.parametrize(("selector", "query", "_expected_indexes"), SELECTOR_CASES)
def test_selector_is_formatted_as_query(selector: Object, query: str, _expected_indexes: list[int]) -> None:
    assert format_selector(selector) == query


@pytest.mark.parametrize(
    "selector", [{"matchlabels": {}}, {"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}]
)
def test_invalid_selector_cannot_be_formatted(selector: Object) -> None:
    with pytest.raises(ValueError, match="unknown"):
        format_selector(selector)


@pytest.mark.parametrize(("_selector", "query", "expected_indexes"), SELECTOR_CASES)
def test_selector_query_is_parsed(_selector: Object, query: str, expected_indexes: list[int]) -> None:
    """DRN-1a: a selector query is parsed into a selector that matches the expected labels."""
    assert [
        number for number, labels in enumerate(LABEL_SETS) if matches(parse_selector(query), labels)
    ] == expected_indexes


QUERIES = [
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


@pytest.mark.parametrize("query", QUERIES)
def test_selector_query_is_valid_if_api_server_accepts_it(
    query: str, labelled_configmaps: tuple[SyncClient, str]
) -> None:
    """DRN-1a, DRN-5: a selector query is valid if and only if the API server accepts it, and selects the same objects.

    Only numeric comparisons differ: the API server accepts them, and the product rejects them.
    """
    client, path = labelled_configmaps
    try:
        all_metadata = [configmap["metadata"] for configmap in client.list(path)["items"]]
        selected_configmaps = client.list(path, label_selector=query)["items"]
    except Rejected:
        with pytest.raises(ValueError, match="is not a condition on a label"):
            parse_selector(query)
        return

    assert [
        metadata["name"] for metadata in all_metadata if matches(parse_selector(query), metadata.get("labels") or {})
    ] == [configmap["metadata"]["name"] for configmap in selected_configmaps]


@pytest.mark.parametrize("query", ["app>1", "app < 1"])
def test_selector_query_with_numeric_comparison_is_rejected(query: str) -> None:
    with pytest.raises(ValueError, match="is not a condition on a label"):
        parse_selector(query)


def test_empty_selector_query_matches_all_labels() -> None:
    assert parse_selector("") == parse_selector("  ") == {}
