"""Durations as Knative writes them: ISO 8601, weeks to seconds, with decimals."""

from __future__ import annotations

import re

UNITS = {"W": 604800, "D": 86400, "H": 3600, "M": 60, "S": 1}  # in seconds
NUMBER = r"(\d+(?:[.,]\d+)?)"
DURATION = re.compile(rf"P(?:{NUMBER}W)?(?:{NUMBER}D)?(?:T(?:{NUMBER}H)?(?:{NUMBER}M)?(?:{NUMBER}S)?)?")


def seconds(text: str) -> float:
    """Seconds in a duration such as PT0.2S. Raises ValueError; years and months have no fixed length."""
    match = DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT0.2S")
    numbers = [float((number or "0").replace(",", ".")) for number in match.groups()]
    return sum(number * unit for number, unit in zip(numbers, UNITS.values(), strict=True))
