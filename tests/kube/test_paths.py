"""Tests that free text in API paths and field selectors never addresses another resource."""

from __future__ import annotations

import pytest

from kube.nodes import build_node_path
from kube.paths import build_node_name_selector, build_pods_on_node_query, encode_path_segment


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("node-1", "node-1"),
        ("a b", "a%20b"),
        ("x/status", "x%3Astatus"),
        ("x%2Fy", "x%3A2Fy"),
        ("x?y#z", "x%3Fy%23z"),
        (".", "%3A"),
        ("..", "%3A"),
        ("", "%3A"),
        ("X.x", "X.x"),
        ("X", "X"),
    ],
)
def test_name_is_encoded_as_one_path_segment(name: str, path: str) -> None:
    """NMO-19: a text that is not a valid object name is encoded as one path segment, for which no object exists."""
    assert encode_path_segment(name) == path
    assert build_node_path(name) == f"/api/v1/nodes/{path}"


def test_field_selector_escapes_free_text() -> None:
    """NMO-19: comma, equals sign and backslash in a field selector are escaped, because they would end the value."""
    assert build_node_name_selector("node-1") == "spec.nodeName=node-1"
    assert build_pods_on_node_query(r"a,b=c\d") == ("/api/v1/pods", r"spec.nodeName=a\,b\=c\\d")
