"""Reads the product's API requests from the audit log: time, ServiceAccount, verb and resource.

Unlike the API server's metrics, the audit log identifies the client. `localcluster/audit-policy.yaml` also logs the
read requests of the product's ServiceAccounts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from localcluster.access import make_username

ACCOUNT_PREFIX = make_username("")
"""Prefix of the user names of the product's ServiceAccounts."""
WATCH = "watch"
RESPONSE_COMPLETE, RESPONSE_STARTED = "ResponseComplete", "ResponseStarted"


@dataclass(frozen=True)
class Request:
    """One API request of the product.

    Attributes:
        received_at: When the API server received the request, in seconds since the epoch.
        account: The name of the product's ServiceAccount.
        verb, resource: For example `list` and `pods`; a subresource is appended after a slash.
        namespace, name: The object's namespace and name; "" if the request has none.
        is_not_found: Whether the response status was 404.
    """

    received_at: float
    account: str
    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    is_not_found: bool = False

    @property
    def operation(self) -> str:
        """Return the verb and the resource, such as "list pods"."""
        return f"{self.verb} {self.resource}"


class AuditLog:
    """Reads the product's requests from an audit log; skips requests that were logged before this object's creation."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._position = file.stat().st_size

    def read(self) -> list[Request]:
        """Return the requests since the previous call in order of completion; a watch counts once it has started."""
        with self._file.open("rb") as log:
            log.seek(self._position)
            complete_lines, newline, _ = log.read().rpartition(b"\n")
        self._position += len(complete_lines) + len(newline)
        return list(parse_requests(complete_lines.splitlines()))


def parse_requests(lines: Iterable[bytes]) -> Iterator[Request]:
    """Yield the product's requests from lines of an audit log; the first line may be incomplete."""
    for line in lines:
        if ACCOUNT_PREFIX.encode() in line and line.startswith(b"{"):
            entry = json.loads(line)
            account = entry["user"].get("username", "")
            stage = RESPONSE_STARTED if entry["verb"] == WATCH else RESPONSE_COMPLETE
            if account.startswith(ACCOUNT_PREFIX) and entry["stage"] == stage:
                yield _parse_request(entry, account.removeprefix(ACCOUNT_PREFIX))


def _parse_request(audit_entry: Mapping[str, Any], account: str) -> Request:
    object_ref = audit_entry.get("objectRef") or {"resource": audit_entry["requestURI"].partition("?")[0]}
    resource = "/".join(filter(None, (object_ref["resource"], object_ref.get("subresource"))))
    received_at = datetime.fromisoformat(audit_entry["requestReceivedTimestamp"].replace("Z", "+00:00"))
    object_key = (object_ref.get("namespace", ""), object_ref.get("name", ""))
    is_missing = (audit_entry.get("responseStatus") or {}).get("code") == HTTPStatus.NOT_FOUND
    timestamp, verb = received_at.timestamp(), audit_entry["verb"]
    return Request(timestamp, account, verb, resource, *object_key, is_not_found=is_missing)


def count_requests(requests: Iterable[Request]) -> dict[str, float]:
    """Count the requests by verb and resource; watches do not count, because they are long-running."""
    return dict(Counter(request.operation for request in requests if request.verb != WATCH))
