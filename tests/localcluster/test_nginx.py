"""Test for nginx, which replaces the cluster's DNS on a local cluster."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from localcluster.knative.planes import Proxy
from localcluster.processes import is_listening, wait_until_ready


@pytest.mark.e2e
def test_nginx_starts_in_directory_with_space(tmp_path: Path) -> None:
    """Check that nginx starts in a directory whose name contains a space, as the work tree's may."""
    proxy = Proxy(tmp_path / "my clone", {"ingress": 1, "filter": 2, "dispatcher": 3})
    port = urlsplit(proxy.url).port or 0
    proxy.server.start()
    try:
        wait_until_ready("nginx", lambda: is_listening(port), [proxy.server])
    finally:
        proxy.server.kill()
