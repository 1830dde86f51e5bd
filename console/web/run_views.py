"""The pages about upgrade runs: the list of runs, and one run with its steps, nodes, Jobs and timeline.

The console reads runs with the caller's permissions. It does not watch them, because there are few and they take hours.
An open page instead polls its status every two seconds.
"""

from __future__ import annotations

from flask import Response, make_response, render_template, request

from console.operations import upgrade_runs
from console.operations.run_reports import (
    STEP_CURRENT,
    STEP_DONE,
    STEP_HALTED,
    STEP_PENDING,
    STOPPED_STEPS,
    build_report,
)
from console.web.callers import LIST_RUNS
from console.web.context import ConsoleContext
from console.web.event_views import render_timeline
from console.web.polling import build_unchanged_response, render_stale_banner
from kube.client.api_errors import Unavailable
from kube.paths import Object

STATE_TONES = {
    "Failed": "bad",
    "Invalid": "bad",
    "Finished": "ok",
    "Waiting": "off",
    "New": "off",
    "Gone": "off",
    "Done": "ok",
}
"""Map from the state of a run or node to its CSS class; any other state is in progress."""
STEP_CLASSES = {STEP_DONE: "done", STEP_CURRENT: "current", STEP_HALTED: "failed", STEP_PENDING: "pending"}
"""Map from the state of a step to its CSS class in the stepper."""
RESULT_TONES = {"Complete": "ok", "Failed": "bad", "Running": "busy"}
"""Map from the result of a Job to its CSS class."""


class RunViews:
    """Views about upgrade runs; `console.web.app` maps a URL to each public method."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context

    def runs(self) -> str:
        """Render the list of all MutexRunConfigs, each with what it waits for."""
        api, user = self._context.get_api_and_user_name([LIST_RUNS])
        runs = self._context.client.run(upgrade_runs.list_runs(api))
        return render_template("runs.html", user=user, runs=[build_report(run) for run in runs], **_get_css_classes())

    def run(self, namespace: str, name: str) -> str:
        """Render the details of one MutexRunConfig."""
        run, user = self._read_run_and_user_name(namespace, name)
        return render_template("run.html", user=user, **_build_details(run))

    def run_status(self, namespace: str, name: str) -> Response:
        """Render the parts of the run's page that change, unless the page already shows the current resourceVersion.

        The response triggers the client-side event `moved`, on which the page reloads the timeline.
        """
        try:
            run, _ = self._read_run_and_user_name(namespace, name)
        except Unavailable:
            # The page keeps its content and polls again.
            return build_unchanged_response(self._context.watcher)
        if run["metadata"]["resourceVersion"] == request.args.get("version"):
            return build_unchanged_response(self._context.watcher)
        status_html = render_template("run_status.html", **_build_details(run))
        response = make_response(status_html + render_stale_banner(self._context.watcher.get_stale_since()))
        response.headers["HX-Trigger"] = "moved"
        return response

    def run_timeline(self, namespace: str, name: str) -> str:
        """Render the timeline of all recorded events of the MutexRunConfig."""
        run, user = self._read_run_and_user_name(namespace, name)
        return render_timeline(self._context.journal, run["metadata"]["uid"], user=user, name=name, of="run")

    def _read_run_and_user_name(self, namespace: str, name: str) -> tuple[Object, str]:
        """Return the MutexRunConfig and the caller's user name. Raises `Refusal` (404) if it does not exist."""
        api, user = self._context.get_api_and_user_name([LIST_RUNS])
        return self._context.client.run(upgrade_runs.get_run(api, f"{namespace}/{name}")), user


def _build_details(run: Object) -> Object:
    return {"run": build_report(run), "version": run["metadata"]["resourceVersion"], **_get_css_classes()}


def _get_css_classes() -> Object:
    return {"tones": STATE_TONES, "steps": STEP_CLASSES, "results": RESULT_TONES, "stopped_steps": STOPPED_STEPS}
