"""Tests for parsing, adding and comparing resource quantities."""

from __future__ import annotations

import pytest

from kube.quantities import add_resources, compute_max_resources, parse_quantity, parse_resources


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ("1", 1_000),
        ("100m", 100),
        ("1.5", 1_500),
        (".5", 500),
        ("1.", 1_000),
        ("1k", 1_000_000),
        ("1Ki", 1_024_000),
        ("2Gi", 2 * 1024**3 * 1000),
        ("1e3", 1_000_000),
        ("1E3", 1_000_000),
        ("1E", 10**21),
        ("1e-3", 1),
        ("1n", 1),
        ("0", 0),
        ("-1", -1_000),
        (4, 4_000),
        ("9007199254740993", 9_007_199_254_740_993_000),
    ],
    ids=str,
)
def test_quantity_is_parsed_in_thousandths_and_rounded_up(quantity: object, expected: int) -> None:
    assert parse_quantity(quantity) == expected


@pytest.mark.parametrize("quantity", ["", "m", "1 Gi", "1KiB", "1e999999999", "NaN", "٣", None])
def test_invalid_quantity_is_rejected(quantity: object) -> None:
    with pytest.raises(ValueError, match="is not a quantity, such as 100m or 2Gi"):
        parse_quantity(quantity)


def test_resource_lists_are_added_and_compared_by_name() -> None:
    first, second = parse_resources({"cpu": "1", "memory": "1k"}), parse_resources({"cpu": "500m", "gpu": 1})

    assert add_resources(first, second) == {"cpu": 1_500, "memory": 1_000_000, "gpu": 1_000}
    assert compute_max_resources(first, second) == {"cpu": 1_000, "memory": 1_000_000, "gpu": 1_000}
    assert parse_resources(None) == {}
