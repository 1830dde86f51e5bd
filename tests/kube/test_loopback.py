"""Tests for recognizing loopback URLs."""

from __future__ import annotations

import pytest

from kube.loopback import is_loopback_url

LOOPBACK_URLS = (
    "http://localhost",
    "https://LOCALHOST:6443",
    "https://127.0.0.1:6443/x",
    "http://127.8.9.10",
    "https://[::1]",
)
OTHER_URLS = ("https://10.0.0.1", "https://[::2]", "https://localhost.example.com", "https://x", "http://[", "")


@pytest.mark.parametrize("url", LOOPBACK_URLS)
def test_loopback_url_is_recognized(url: str) -> None:
    assert is_loopback_url(url)


@pytest.mark.parametrize("url", OTHER_URLS)
def test_url_without_loopback_host_is_rejected(url: str) -> None:
    assert not is_loopback_url(url)
