"""Parses resource quantities and adds up resource lists. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Any

Resources = Mapping[str, int]
"""Amounts by resource name, in thousandths of the resource's unit: millicores of CPU, thousandths of a byte."""
MILLI = 1000
"""Number of thousandths in one unit of a resource."""
_QUANTITY_PATTERN = re.compile(
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))(?:[eE](?P<exponent>[+-]?\d{1,2})|(?P<suffix>[KMGTPE]i|[numkMGTPE]))?",
    re.ASCII,
)
_FACTORS = {
    **{
        suffix: Decimal(1000) ** power
        for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}


@lru_cache(maxsize=4096)
def parse_quantity(quantity: object) -> int:
    """Parse a quantity such as `100m`, `1.5`, `2Gi` or `1e3`; return it in thousandths, rounded up.

    Raises `ValueError` for text that is not a quantity. Source: the documentation of `resource.Quantity` in
    k8s.io/apimachinery.
    """
    match = _QUANTITY_PATTERN.fullmatch(str(quantity))
    if match is None:
        raise ValueError(f"{str(quantity)[:40]!r} is not a quantity, such as 100m or 2Gi")
    number = Decimal(match["number"]).scaleb(int(match["exponent"] or 0))
    return int((number * _FACTORS[match["suffix"] or ""] * MILLI).to_integral_value(ROUND_CEILING))


def parse_resources(quantities: Mapping[str, Any] | None) -> dict[str, int]:
    """Parse a resource list, such as a container's requests or a node's allocatable resources, into thousandths."""
    return {name: parse_quantity(quantity) for name, quantity in (quantities or {}).items()}


def add_resources(first: Resources, second: Resources) -> dict[str, int]:
    """Return the sum of two resource lists."""
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}


def compute_max_resources(first: Resources, second: Resources) -> dict[str, int]:
    """Return the larger amount of each resource in two resource lists."""
    return {name: max(first.get(name, 0), second.get(name, 0)) for name in {**first, **second}}
