"""A proxy between the broker and the functions that injects faults: duplicated, reordered, lost and rejected events."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import requests
from requests.adapters import HTTPAdapter

from localcluster.delivery_engines import Running
from tests.receiver import Answer, Received

Way = Callable[[Received], Answer]
LATE = 0.5
"""Maximum seconds by which an event is delayed."""
ATTEMPTS = 10
KEPT = ("content-type", "traceparent")
"""The headers that belong to an event, besides its ce- headers."""


class Mischief:
    """A proxy that forwards each event to the function that the path names, with the current fault."""

    def __init__(self, product: Running) -> None:
        self._product = product
        self._local = threading.local()
        self._lock = threading.Lock()
        self._doubled: set[tuple[str, str, str]] = set()
        self.calls: Counter[str] = Counter()
        self._heard: dict[str, set[str]] = defaultdict(set)
        self.way: Way = self.once

    def __call__(self, request: Received) -> Answer:
        """Handle the request with the current fault."""
        with self._lock:
            self._heard[request.path.strip("/")].add(request.id)
        return self.way(request)

    def heard(self, function: str) -> set[str]:
        """Return the ids of the events that the broker sent to a function, including rejected ones."""
        with self._lock:
            return set(self._heard[function])

    def forget(self) -> None:
        """Reset the recorded events and calls."""
        with self._lock:
            self._heard.clear()
            self._doubled.clear()
        self.calls.clear()

    def behave(self) -> None:
        """Stop injecting faults."""
        self.way = self.once

    def once(self, request: Received) -> Answer:
        """Forward the request without a fault."""
        name, headers = request.path.strip("/"), _event(request.headers)
        self.calls[name] += 1
        try:
            answer = self._session().post(self._product.function_url(name), request.body, headers=headers, timeout=30)
        except requests.RequestException as error:
            return Answer(502, {}, str(error).encode())
        return Answer(answer.status_code, _event(answer.headers), answer.content)

    def twice(self, request: Received) -> Answer:
        """Call the function twice concurrently, and send both replies to the broker.

        The function thus receives each event one time more than the broker sent it. Events that were already duplicated
        are not duplicated again, otherwise the fifth step of the chain would receive 32 events.
        """
        event = (request.path, request.headers["ce-source"], request.id)
        with self._lock:
            doubled = event in self._doubled
            self._doubled.add(event)
        if doubled:
            return self.once(request)
        with ThreadPoolExecutor(max_workers=1) as other:
            waiting = other.submit(self.once, request)
            answer = self.once(request)
            second = waiting.result()
        if second.status == 200:
            self.post(second)
        return answer

    def late(self, request: Received) -> Answer:
        """Accept the event now and deliver it later, so that a later event may overtake it."""
        wait = random.uniform(0, LATE)
        threading.Thread(target=self._answer_later, args=(request, wait), daemon=True).start()
        return Answer(204)

    def never(self, request: Received) -> Answer:
        """Accept the event and drop it."""
        return Answer(204)

    def without(self, name: str) -> Way:
        """Return a handler that rejects the events for one function."""

        def handle(request: Received) -> Answer:
            if request.path.strip("/") == name:
                return Answer(503, body=b"not now\n")
            return self.once(request)

        return handle

    def _answer_later(self, request: Received, wait: float) -> None:
        """Deliver the event until the function accepts it, and send its reply to the broker."""
        time.sleep(wait)
        for _ in range(ATTEMPTS):
            answer = self.once(request)
            if answer.status < 300:
                break
            time.sleep(LATE)
        if answer.status == 200:
            self.post(answer)

    def post(self, answer: Answer) -> None:
        """Send a function's reply to the broker."""
        self._session().post(self._product.broker_url, answer.body, headers=dict(answer.headers), timeout=30)

    def _session(self) -> requests.Session:
        """Return the session of the current thread; it ignores the proxy settings in the environment."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.trust_env = False
            self._local.session.mount("http://", HTTPAdapter(pool_maxsize=64))
        session: requests.Session = self._local.session
        return session


def _event(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that belong to the event."""
    lowered = {name.lower(): value for name, value in headers.items()}
    return {name: value for name, value in lowered.items() if name.startswith("ce-") or name in KEPT}
