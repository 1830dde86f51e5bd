"""The product's requests to the API server, from the audit log: by time, account, verb and resource.

The API server's metrics do not identify the client, but the audit log does. `localcluster/audit-policy.yaml` also logs
the reads of the product's accounts.
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

from localcluster.access import service_account

ACCOUNTS = service_account("")
"""Prefix of the user names of the product's ServiceAccounts."""
WATCH = "watch"
ENDED, STARTED = "ResponseComplete", "ResponseStarted"


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        at: When the API server received it, in seconds since 1970.
        account: The name of the ServiceAccount.
        verb, resource: For example `list` and `pods`; a subresource follows after a slash.
        namespace, name: Of the object; "" if there is none.
        is_missing: Whether it was answered with 404.
    """

    at: float
    account: str
    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    is_missing: bool = False

    @property
    def what(self) -> str:
        """Return verb and resource."""
        return f"{self.verb} {self.resource}"


class AuditLog:
    """The product's requests since the creation of this object or the previous call of `read`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._position = file.stat().st_size

    def read(self) -> list[Request]:
        """Return the new requests in the order of their completion; a watch counts from the start of its response."""
        with self._file.open("rb") as log:
            log.seek(self._position)
            whole, end, _ = log.read().rpartition(b"\n")
        self._position += len(whole) + len(end)
        return list(requests(whole.splitlines()))


def requests(lines: Iterable[bytes]) -> Iterator[Request]:
    """Yield the product's requests in lines of an audit log; the first line may be incomplete."""
    for line in lines:
        if ACCOUNTS.encode() in line and line.startswith(b"{"):
            entry = json.loads(line)
            account = entry["user"].get("username", "")
            stage = STARTED if entry["verb"] == WATCH else ENDED
            if account.startswith(ACCOUNTS) and entry["stage"] == stage:
                yield _request(entry, account.removeprefix(ACCOUNTS))


def _request(entry: Mapping[str, Any], account: str) -> Request:
    about = entry.get("objectRef") or {"resource": entry["requestURI"].partition("?")[0]}
    resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
    moment = datetime.fromisoformat(entry["requestReceivedTimestamp"].replace("Z", "+00:00"))
    where = (about.get("namespace", ""), about.get("name", ""))
    is_missing = (entry.get("responseStatus") or {}).get("code") == HTTPStatus.NOT_FOUND
    return Request(moment.timestamp(), account, entry["verb"], resource, *where, is_missing=is_missing)


def counted(found: Iterable[Request]) -> dict[str, float]:
    """Return the number of requests by verb and resource, without watches, which are long-running."""
    return dict(Counter(request.what for request in found if request.verb != WATCH))
