"""Tests of which URLs are loopback addresses."""

from __future__ import annotations

import pytest

from kube.loopback import is_loopback

HERE = ("http://localhost", "https://LOCALHOST:6443", "https://127.0.0.1:6443/x", "http://127.8.9.10", "https://[::1]")
ELSEWHERE = ("https://10.0.0.1", "https://[::2]", "https://localhost.example.com", "https://x", "http://[", "")


@pytest.mark.parametrize("url", HERE)
def test_a_loopback_address_is_this_machine_s(url: str) -> None:
    assert is_loopback(url)


@pytest.mark.parametrize("url", ELSEWHERE)
def test_any_other_address_may_be_anybody_s(url: str) -> None:
    assert not is_loopback(url)
