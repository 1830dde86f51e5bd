"""Runs a function's step for an event, and decides whether a failed event is retried, reported or rejected."""

from __future__ import annotations

import logging

from cloudevents.core.base import BaseCloudEvent

from eventing import extensions
from eventing.signatures import require_valid_signature
from functions.failures import Busy, Failed, Retry
from functions.serving.failure_tracker import FailureTracker
from functions.steps import Function
from functions.work_queue import WorkQueue
from kube.client.api_errors import ApiError, Conflict, Unavailable
from kube.client.sync_client import SyncClient

log = logging.getLogger("functions")


class FunctionRunner:
    """Runner of one function, with the function's work queue and failure tracker. Thread-safe."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self._work_queue = WorkQueue(function.coalescing) if function.coalescing else None
        self._failure_tracker = FailureTracker()

    def invoke(self, event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
        """Run the step and return its reply events; for a permanent error, return the step's failure event.

        A transient error that persists also results in the failure event (see `failure_tracker`). A replay bypasses the
        work queue. Raises `Retry` if a retry may succeed, `BadEvent` if the event is invalid, and its subclass
        `InvalidSignature` if a required signature is missing or wrong. A dry run needs no signature, because it writes
        nothing; its event may come from another install.
        """
        if not self.function.accepts(event):
            return []
        if self.function.requires_signature and not extensions.is_dry_run(event):
            require_valid_signature(event)
        if extensions.is_replay(event):
            return self._run_step(event, client)
        try:
            replies = self._run_coalesced(event, client)
        except Retry as error:
            if not self._failure_tracker.record_failure(event, busy=isinstance(error, Busy)):
                raise
            return self._handle_failure(event, str(error))
        self._failure_tracker.record_success(event)
        return replies

    def _run_coalesced(self, event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
        if self._work_queue is None:
            return self._run_step(event, client)
        return self._work_queue.handle_hint(event, lambda hint: self._run_step(hint, client))

    def _run_step(self, event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
        try:
            return self.function.step(event, client)
        except (Conflict, Unavailable) as error:
            raise Retry(error.message) from error
        except Failed as error:
            return self._handle_failure(event, str(error))
        except ApiError as error:  # A retry of a request that the API server denied or rejected would not help.
            return self._handle_failure(event, error.message)

    def _handle_failure(self, event: BaseCloudEvent, error: str) -> list[BaseCloudEvent]:
        log.error(error, extra={"fields": {"function": self.function.name, "event": event.get_id()}})
        return self.function.on_failure(self.function.name, event, error)
