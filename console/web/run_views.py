"""The pages about upgrade runs: the list, and one run with its steps, nodes, Jobs and timeline.

The pages read with the caller's permissions, and an open page requests its status every two seconds. The console does
not watch runs, because there are few and they take hours.
"""

from __future__ import annotations

from flask import Response, make_response, render_template, request

from console.operations import upgrade_runs
from console.operations.run_reports import report
from console.web.callers import RUNS_LIST
from console.web.context import Context
from console.web.event_views import timeline
from kube.client.api_errors import Unavailable
from kube.paths import Object

TONES = {
    "Failed": "bad",
    "Invalid": "bad",
    "Finished": "ok",
    "Waiting": "off",
    "New": "off",
    "Gone": "off",
    "Done": "ok",
}
"""CSS class for the state of a run or a node; any other state is in progress."""
STATES = {"done": "ok", "now": "busy", "stopped": "bad", "to come": "done"}
"""CSS class for the state of a step."""
RESULTS = {"Complete": "ok", "Failed": "bad", "Running": "busy"}
"""CSS class for the result of a Job."""


class RunPages:
    """The views about upgrade runs; `console.web.app` maps a URL to each method."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def runs(self) -> str:
        """Render all run configs, with what each waits for."""
        door, user = self._context.reader([RUNS_LIST])
        found = self._context.cluster.run(upgrade_runs.runs(door))
        return render_template("runs.html", user=user, runs=[report(run) for run in found], **_looks())

    def run(self, namespace: str, name: str) -> str:
        """Render the details of one run config."""
        run, user = self._read(namespace, name)
        return render_template("run.html", user=user, **_details(run))

    def run_status(self, namespace: str, name: str) -> Response:
        """Render the parts of the page that change, unless the page already shows this `version`.

        The event `moved` means that there may also be new recorded events.
        """
        try:
            run, _ = self._read(namespace, name)
        except Unavailable:
            return self._unchanged()  # the page keeps its content and asks again
        if run["metadata"]["resourceVersion"] == request.args.get("version"):
            return self._unchanged()
        response = make_response(render_template("run_status.html", **_details(run)) + self._banner())
        response.headers["HX-Trigger"] = "moved"
        return response

    def _unchanged(self) -> Response:
        """Build an empty response, or one with only the banner if the page shows an outdated banner."""
        if request.args.get("stale", "") == self._context.live.stale_since():
            return Response(status=204)
        response = make_response(self._banner())
        response.headers["HX-Reswap"] = "none"
        return response

    def _banner(self) -> str:
        return render_template("stale.html", since=self._context.live.stale_since(), oob=True)

    def run_timeline(self, namespace: str, name: str) -> str:
        """Render the timeline of all events recorded for the run."""
        run, user = self._read(namespace, name)
        return timeline(self._context.journal, run["metadata"]["uid"], user=user, name=name, of="run")

    def _read(self, namespace: str, name: str) -> tuple[Object, str]:
        """Return the run config and the caller's name. Raises `Refusal` (404) if it does not exist."""
        door, user = self._context.reader([RUNS_LIST])
        return self._context.cluster.run(upgrade_runs.named(door, f"{namespace}/{name}")), user


def _details(run: Object) -> Object:
    return {"run": report(run), "version": run["metadata"]["resourceVersion"], **_looks()}


def _looks() -> Object:
    return {"tones": TONES, "states": STATES, "results": RESULTS}
