"""Tests of the warnings in the API server's response headers."""

from __future__ import annotations

import pytest

from kube.client.decoding import hear, hearing


@pytest.mark.parametrize(
    ("headers", "texts"),
    [
        ([], []),
        (['299 - "pods will be gone"'], ["pods will be gone"]),
        (['299 - "a"', '299 - "b", 299 kube "c"', '299 - "a"'], ["a", "b", "c"]),
        (['299 - "say \\"no\\" to \\\\"'], ['say "no" to \\']),
        (["", "110 - stale", '199 - "x"', "299 - unquoted"], []),
    ],
)
def test_each_warning_is_heard_once(headers: list[str], texts: list[str]) -> None:
    with hearing() as heard:
        hear(headers)

    assert heard == texts


def test_nobody_has_to_listen() -> None:
    hear(['299 - "lost"'])

    with hearing() as heard:
        pass

    assert heard == []
