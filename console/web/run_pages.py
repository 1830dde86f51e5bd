"""The pages about runs of the upgrade mutex: the list, and one run with its steps, nodes, Jobs and timeline.

They are read as the caller, who asks again every two seconds while the page is open: runs are few and last for hours.
"""

from __future__ import annotations

from flask import Response, make_response, render_template, request

from console.operations import upgrade_runs
from console.operations.run_reports import report
from console.web.callers import RUNS_LIST
from console.web.context import Context
from console.web.event_pages import timeline
from kube.door.api_errors import Unavailable
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
"""How a run's or a node's state looks; all others are at work."""
STATES = {"done": "ok", "now": "busy", "stopped": "bad", "to come": "done"}
"""How the state of a step looks."""
RESULTS = {"Complete": "ok", "Failed": "bad", "Running": "busy"}
"""How the result of a Job looks."""


class RunPages:
    """The views; each method is one, listed in `console.web.app`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def runs(self) -> str:
        """All run configs, with what each waits for."""
        door, user = self._context.reader([RUNS_LIST])
        found = self._context.cluster.run(upgrade_runs.runs(door))
        return render_template("runs.html", user=user, runs=[report(run) for run in found], **_looks())

    def run(self, namespace: str, name: str) -> str:
        """One run config in detail."""
        run, user = self._read(namespace, name)
        return render_template("run.html", user=user, **_details(run))

    def run_status(self, namespace: str, name: str) -> Response:
        """What of the page changes, if it is not as in `version`; `moved` says that there may be new events, too."""
        try:
            run, _ = self._read(namespace, name)
        except Unavailable:
            return self._unchanged()  # the page keeps what it shows, and asks again
        if run["metadata"]["resourceVersion"] == request.args.get("version"):
            return self._unchanged()
        response = make_response(render_template("run_status.html", **_details(run)) + self._banner())
        response.headers["HX-Trigger"] = "moved"
        return response

    def _unchanged(self) -> Response:
        """Nothing, or the banner alone where the page shows another one."""
        if request.args.get("stale", "") == self._context.live.stale_since():
            return Response(status=204)
        response = make_response(self._banner())
        response.headers["HX-Reswap"] = "none"
        return response

    def _banner(self) -> str:
        return render_template("stale.html", since=self._context.live.stale_since(), oob=True)

    def run_timeline(self, namespace: str, name: str) -> str:
        """The lanes of all that was recorded of it."""
        run, user = self._read(namespace, name)
        return timeline(self._context.journal, run["metadata"]["uid"], user=user, name=name, of="run")

    def _read(self, namespace: str, name: str) -> tuple[Object, str]:
        """The run config, and the caller's name. Raises `Refusal` (404) for one that is not there."""
        door, user = self._context.reader([RUNS_LIST])
        return self._context.cluster.run(upgrade_runs.named(door, f"{namespace}/{name}")), user


def _details(run: Object) -> Object:
    return {"run": report(run), "version": run["metadata"]["resourceVersion"], **_looks()}


def _looks() -> Object:
    return {"tones": TONES, "states": STATES, "results": RESULTS}
