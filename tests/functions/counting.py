"""What a function asks of the API server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kube.door.api import Api
from kube.paths import Object


@contextmanager
def requests_of(api: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How many requests go through this door meanwhile, by path."""
    counted: Counter[str] = Counter()
    real = api.request

    async def request(method: str, path: str, **more: Any) -> Object:
        counted[f"{method} {path}"] += 1
        return await real(method, path, **more)

    with monkeypatch.context() as patched:
        patched.setattr(api, "request", request)
        yield counted
