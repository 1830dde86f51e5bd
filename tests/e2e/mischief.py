"""Stands between the broker and the functions and does what a network and a broker may do: repeat, reorder, refuse."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import requests
from requests.adapters import HTTPAdapter

from localcluster.deliveries import Running
from tests.receiver import Answer, Received

Way = Callable[[Received], Answer]
LATE = 0.5
"""Seconds by which an event is late at most."""
ATTEMPTS = 10
KEPT = ("content-type", "traceparent")
"""What belongs to an event beside its ce- headers."""


class Mischief:
    """Forwards an event to the function that the path names."""

    def __init__(self, product: Running) -> None:
        self._product = product
        self._local = threading.local()
        self._lock = threading.Lock()
        self._doubled: set[tuple[str, str, str]] = set()
        self.calls: Counter[str] = Counter()
        self._heard: dict[str, set[str]] = defaultdict(set)
        self.way: Way = self.once

    def __call__(self, request: Received) -> Answer:
        """Answer in the way of the moment."""
        with self._lock:
            self._heard[request.path.strip("/")].add(request.id)
        return self.way(request)

    def heard(self, function: str) -> set[str]:
        """Ids of the events that the broker has brought for a function, whether it took them or not."""
        with self._lock:
            return set(self._heard[function])

    def forget(self) -> None:
        """Count from now on."""
        with self._lock:
            self._heard.clear()
            self._doubled.clear()
        self.calls.clear()

    def behave(self) -> None:
        """From now on all is as it should be."""
        self.way = self.once

    def once(self, request: Received) -> Answer:
        """As it should be."""
        name, headers = request.path.strip("/"), _event(request.headers)
        self.calls[name] += 1
        try:
            answer = self._session().post(self._product.function_url(name), request.body, headers=headers, timeout=30)
        except requests.RequestException as error:
            return Answer(502, {}, str(error).encode())
        return Answer(answer.status_code, _event(answer.headers), answer.content)

    def twice(self, request: Received) -> Answer:
        """Two calls at the same moment, and the broker gets both answers, whether they are one event or two.

        So a function has each event once more often than the broker brought it: about one more at every step of the
        chain, for some duplicates have nothing to answer. Were duplicates doubled again, the fifth step would have 32.
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
        """Taken now, delivered some time later: what comes after it may overtake it."""
        wait = random.uniform(0, LATE)
        threading.Thread(target=self._answer_later, args=(request, wait), daemon=True).start()
        return Answer(204)

    def never(self, request: Received) -> Answer:
        """Taken, and forgotten."""
        return Answer(204)

    def without(self, name: str) -> Way:
        """One function is not available."""

        def handle(request: Received) -> Answer:
            if request.path.strip("/") == name:
                return Answer(503, body=b"not now\n")
            return self.once(request)

        return handle

    def _answer_later(self, request: Received, wait: float) -> None:
        """Deliver until it is taken, and hand on the answer as the broker would."""
        time.sleep(wait)
        for _ in range(ATTEMPTS):
            answer = self.once(request)
            if answer.status < 300:
                break
            time.sleep(LATE)
        if answer.status == 200:
            self.post(answer)

    def post(self, answer: Answer) -> None:
        """Send a function's answer to the broker."""
        self._session().post(self._product.broker_url, answer.body, headers=dict(answer.headers), timeout=30)

    def _session(self) -> requests.Session:
        """One for each thread; a proxy from the environment is for the world outside."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.trust_env = False
            self._local.session.mount("http://", HTTPAdapter(pool_maxsize=64))
        session: requests.Session = self._local.session
        return session


def _event(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that belong to the event."""
    lowered = {name.lower(): value for name, value in headers.items()}
    return {name: value for name, value in lowered.items() if name.startswith("ce-") or name in KEPT}
