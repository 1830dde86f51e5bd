"""The few HTTP calls that bringing a cluster up needs; the product has its own door to the API server."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any


class Api:
    """Speaks JSON to one server, as one user."""

    def __init__(
        self, url: str, certificate: str | None = None, token: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.url = url
        self.headers = {"Content-Type": "application/json", **(headers or {})}
        if token:
            self.headers["Authorization"] = f"Bearer {token}"
        self.context = None
        if certificate is not None:
            self.context = ssl.create_default_context(cadata=certificate)
            self.context.verify_flags |= ssl.VERIFY_X509_STRICT  # newer Pythons' default, so older ones show it too

    def get(self, path: str, seconds: float = 5.0) -> Any:
        """Give the decoded answer; raises OSError for whatever goes wrong on the way."""
        return json.loads(self._send("GET", path, None, seconds) or b"null")

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Create an object."""
        return json.loads(self._send("POST", path, body, seconds=30))

    def delete(self, path: str) -> Any:
        """Ask for an object's deletion."""
        return json.loads(self._send("DELETE", path, None, seconds=30))

    def answers(self, path: str) -> bool:
        """Tell whether a GET is answered with success."""
        try:
            self._send("GET", path, None, seconds=5)
        except urllib.error.HTTPError as refusal:
            refusal.close()
            return False
        except OSError:
            return False
        return True

    def watch(self, path: str, seconds: float = 60.0) -> Iterator[dict[str, Any]]:
        """Yield watch events as they come; TimeoutError after `seconds` of silence."""
        with self._open("GET", f"{path}{'&' if '?' in path else '?'}watch=true", None, seconds) as stream:
            for line in stream:
                yield json.loads(line)

    def _send(self, method: str, path: str, body: dict[str, Any] | None, seconds: float) -> bytes:
        with self._open(method, path, body, seconds) as answer:
            content: bytes = answer.read()
        return content

    def _open(self, method: str, path: str, body: dict[str, Any] | None, seconds: float) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self.headers, method=method)  # noqa: S310 - our own server
        # A proxy from the environment is for the world outside, not for this machine.
        tls = urllib.request.HTTPSHandler(context=self.context)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), tls)
        return opener.open(request, timeout=seconds)
