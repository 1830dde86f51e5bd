"""Reads a cluster's journal from the console's journal API, through the API server's service proxy.

The user needs two permissions, which the product's ClusterRoles for users contain. The first is to request a token of
the ServiceAccount `READER`; the token proves to the console that the user may read the journal. The second is to use
the proxy of the Service with the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from http import HTTPStatus
from operator import attrgetter
from typing import Any

from console.operations.errors import NoResult
from console.terminal.journal import JournalUnavailable
from eventing.http_binding import BadEvent
from eventing.journal.entries import BATCH_CAPACITY_CHARACTERS, Entry, Query, split_into_batches
from eventing.journal.wire import (
    AUDIENCE,
    ENTRIES_PATH,
    MAX_NUMBERS,
    NUMBERS_PATH,
    READER,
    TOKEN_HEADER,
    decode_entry,
    encode_query,
    split_by_length,
)
from kube.client.access_reviews import AUTHENTICATION_API_VERSION
from kube.client.api_errors import ApiError, Denied, Unavailable
from kube.client.sync_client import SyncClient
from kube.paths import encode_path_segment

TOKEN_SECONDS = 600
"""Lifetime of a token in seconds: the shortest lifetime that an API server permits."""
MAX_LIST_CHARACTERS = 3000
"""Maximum length of a list in a URL; the console's server accepts request lines of up to 4094 characters."""


class ClusterJournal:
    """Reader of the journal of the cluster that `client` connects to; the product is installed in `namespace`.

    Every method raises `NoResult` with a remedy if the journal cannot be read, or `JournalUnavailable` if a retry may
    succeed.

    Args:
        page_size: Maximum number of entry numbers that one request returns.
    """

    def __init__(self, client: SyncClient, namespace: str, page_size: int = MAX_NUMBERS) -> None:
        self._client, self._namespace, self._page_size = client, namespace, page_size
        self._token = ""
        core = f"/api/v1/namespaces/{encode_path_segment(namespace)}"
        self._token_path = f"{core}/serviceaccounts/{READER}/token"
        self._service_path = f"{core}/services/{READER}/proxy"

    def select(self, query: Query | None = None) -> list[Entry]:
        """Return the selected entries with their attempts, in order of arrival; by default, return all entries.

        As in `Journal.select`, the entries are sorted by their numbers, even if several requests are necessary.
        """
        return sorted(self.iter_entries(query or Query()), key=attrgetter("seq"))

    def iter_entries(self, query: Query) -> Iterator[Entry]:
        """Read the selected entries in batches, and yield them one by one; omit entries that are pruned meanwhile."""
        for numbers in split_into_batches(self._iter_numbers_and_sizes(query), BATCH_CAPACITY_CHARACTERS):
            for part in split_by_length(numbers, MAX_LIST_CHARACTERS):
                yield from self._get_entries(part)

    def _get_entries(self, numbers: tuple[int, ...]) -> list[Entry]:
        try:
            return [decode_entry(data) for data in self._get_json(ENTRIES_PATH, Query(seqs=numbers))["entries"]]
        except BadEvent as error:
            raise NoResult(f"cannot read the cluster's journal: the console sent an invalid event: {error}") from None

    def list_event_numbers(self, query: Query) -> tuple[int, ...]:
        """Return the entry numbers of the selected events."""
        return tuple(number for number, _ in self._iter_numbers_and_sizes(query))

    def _iter_numbers_and_sizes(self, query: Query) -> Iterator[tuple[int, int]]:
        """Yield the number and the size of each selected entry; send several requests if `query.ids` is long."""
        if query.ids:
            for part in split_by_length(query.ids, MAX_LIST_CHARACTERS):
                yield from self._iter_pages(replace(query, ids=part))
        else:
            yield from self._iter_pages(query)

    def _iter_pages(self, query: Query) -> Iterator[tuple[int, int]]:
        is_limited = bool(query.limit)
        page_size = query.limit or self._page_size
        while True:
            page = self._get_json(NUMBERS_PATH, replace(query, limit=page_size))["numbers"]
            yield from ((number, size) for number, size in page)
            if is_limited or len(page) < page_size:
                return
            query = replace(query, after_seq=max(number for number, _ in page))

    def _get_json(self, path: str, query: Query) -> Mapping[str, Any]:
        try:
            return self._request(path, query)
        except ApiError as error:
            raise self._build_error(error) from None

    def _request(self, path: str, query: Query) -> Mapping[str, Any]:
        """Send the request with the current token; if that token has expired, retry with a new one."""
        if self._token:
            try:
                return self._request_with_token(path, query)
            except Denied as error:
                if error.status != HTTPStatus.UNAUTHORIZED:
                    raise
        self._token = self._create_token()
        return self._request_with_token(path, query)

    def _request_with_token(self, path: str, query: Query) -> Mapping[str, Any]:
        api = self._client.api.with_header(TOKEN_HEADER, self._token)
        return self._client.run(api.request("GET", f"{self._service_path}{path}", query={"query": encode_query(query)}))

    def _create_token(self) -> str:
        """Request a token of the ServiceAccount `READER`, which authorizes its bearer to read the journal."""
        spec = {"audiences": [AUDIENCE], "expirationSeconds": TOKEN_SECONDS}
        body = {"apiVersion": AUTHENTICATION_API_VERSION, "kind": "TokenRequest", "spec": spec}
        token: str = self._client.create(self._token_path, body)["status"]["token"]
        return token

    def _build_error(self, error: ApiError) -> NoResult:
        """Convert the error of the API server or the console to a `NoResult` with a remedy.

        Only errors of the API server itself have a `Status` object as their body.
        """
        message = f"cannot read the cluster's journal: {' '.join(error.message.split())}"
        error_class = JournalUnavailable if isinstance(error, Unavailable) else NoResult
        if error.status and error.body.get("kind") != "Status":
            return error_class(message)  # The console's message contains the remedy.
        if error.status == HTTPStatus.FORBIDDEN:
            return NoResult(message, "ask an administrator for the ClusterRole maintenance-viewer")
        if error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE):
            remedy = (
                f'check that the component "console" of this version runs in the namespace "{self._namespace}" (with '
                "Helm, set console.enabled=true), or name a journal with --journal"
            )
            return error_class(message, remedy)
        return error_class(message, "check that --kubeconfig and --context name the cluster, and that it is up")
