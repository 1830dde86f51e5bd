"""A proxy between the broker and the functions, which duplicates, delays, drops or rejects events."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import requests
from requests.adapters import HTTPAdapter

from localcluster.delivery_engines import RunningProduct
from localcluster.http_receiver import ReceivedRequest, Response

Handler = Callable[[ReceivedRequest], Response]
MAX_DELAY_SECONDS = 0.5
"""Maximum delay of an event."""
MAX_ATTEMPTS = 10
EVENT_HEADERS = ("content-type", "traceparent")
"""HTTP headers that belong to an event, besides the headers with the prefix `ce-`."""


class NetworkFaultProxy:
    """A proxy that forwards each event to the function in the request's path, and injects the current fault."""

    def __init__(self, product: RunningProduct) -> None:
        self._product = product
        self._local = threading.local()
        self._lock = threading.Lock()
        self._duplicated_events: set[tuple[str, str, str]] = set()
        self.calls: Counter[str] = Counter()
        self._received_ids: dict[str, set[str]] = defaultdict(set)
        self.handler: Handler = self.forward

    def __call__(self, request: ReceivedRequest) -> Response:
        """Handle the request with the current fault's handler."""
        with self._lock:
            self._received_ids[request.path.strip("/")].add(request.id)
        return self.handler(request)

    def list_received_ids(self, function: str) -> set[str]:
        """Return the ids of the events that the broker has sent to a function, including events that were rejected."""
        with self._lock:
            return set(self._received_ids[function])

    def reset_counters(self) -> None:
        """Forget the recorded event ids and reset the call counts."""
        with self._lock:
            self._received_ids.clear()
            self._duplicated_events.clear()
        self.calls.clear()

    def stop_faults(self) -> None:
        """Stop injecting faults."""
        self.handler = self.forward

    def forward(self, request: ReceivedRequest) -> Response:
        """Forward the request without a fault."""
        name, headers = request.path.strip("/"), _select_event_headers(request.headers)
        self.calls[name] += 1
        try:
            response = self._get_session().post(
                self._product.get_function_url(name), request.body, headers=headers, timeout=30
            )
        except requests.RequestException as error:
            return Response(502, {}, str(error).encode())
        return Response(response.status_code, _select_event_headers(response.headers), response.content)

    def forward_twice(self, request: ReceivedRequest) -> Response:
        """Call the function twice concurrently, and send both replies to the broker.

        If the broker delivers an event again, it is not duplicated again. Otherwise, the fifth function in the chain
        would receive 32 copies.
        """
        event = (request.path, request.headers["ce-source"], request.id)
        with self._lock:
            is_duplicated = event in self._duplicated_events
            self._duplicated_events.add(event)
        if is_duplicated:
            return self.forward(request)
        with ThreadPoolExecutor(max_workers=1) as executor:
            other_delivery = executor.submit(self.forward, request)
            response = self.forward(request)
            other_response = other_delivery.result()
        if other_response.status == 200:
            self.publish_reply(other_response)
        return response

    def forward_delayed(self, request: ReceivedRequest) -> Response:
        """Accept the event now, and deliver it after a random delay, so that later events can overtake it."""
        delay_seconds = random.uniform(0, MAX_DELAY_SECONDS)
        threading.Thread(target=self._deliver_later, args=(request, delay_seconds), daemon=True).start()
        return Response(204)

    def drop(self, request: ReceivedRequest) -> Response:
        """Accept the event, and drop it."""
        return Response(204)

    def build_rejecting_handler(self, function_name: str) -> Handler:
        """Return a handler that rejects all events for this function with status 503, and forwards all others."""

        def handle(request: ReceivedRequest) -> Response:
            if request.path.strip("/") == function_name:
                return Response(503, body=b"rejected by the fault proxy\n")
            return self.forward(request)

        return handle

    def _deliver_later(self, request: ReceivedRequest, delay_seconds: float) -> None:
        """Deliver the event after the delay, with retries; send the function's reply to the broker."""
        time.sleep(delay_seconds)
        for _ in range(MAX_ATTEMPTS):
            response = self.forward(request)
            if response.status < 300:
                break
            time.sleep(MAX_DELAY_SECONDS)
        if response.status == 200:
            self.publish_reply(response)

    def publish_reply(self, reply: Response) -> None:
        """Send a function's reply to the broker."""
        self._get_session().post(self._product.broker_url, reply.body, headers=dict(reply.headers), timeout=30)

    def _get_session(self) -> requests.Session:
        """Return the current thread's HTTP session, which does not use proxies from the environment."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.trust_env = False
            self._local.session.mount("http://", HTTPAdapter(pool_maxsize=64))
        session: requests.Session = self._local.session
        return session


def _select_event_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that belong to the event, with lower-case names."""
    lower_case = {name.lower(): value for name, value in headers.items()}
    return {name: value for name, value in lower_case.items() if name.startswith("ce-") or name in EVENT_HEADERS}
