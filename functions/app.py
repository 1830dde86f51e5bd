"""Every function of every wing in one visible list, and the Flask app that serves them.

`FUNCTION=evict` serves that one alone, at `/` and `/evict`; unset serves all by path. Run by gunicorn
(`functions.app:create_app()`), by func's middleware, or by a test client.
"""

from __future__ import annotations

import os

from flask import Flask

from eventing import logs
from eventing.journal.retention import Retention
from eventing.wire import BODY_LIMIT
from functions import record
from functions.certificates import renew_certificates as certificates
from functions.certificates.settings import Settings
from functions.maintenance import begin, cordon, evict, guard, restore, resync, status, taint
from functions.maintenance.subject import failed
from functions.serving import health
from functions.serving.attempts import Publisher
from functions.serving.function import Function
from functions.serving.handler import handler
from functions.serving.looks import Looks
from functions.serving.tracing import Spans, wanted
from kube.door.eviction_pace import per_second
from kube.door.sync_client import Cluster

FUNCTIONS = {
    function.name: function
    for function in (
        Function("begin", begin.begin, begin.CONSUMES, begin.EMITS, kind="NodeMaintenance", fail=failed),
        Function("cordon", cordon.cordon, cordon.CONSUMES, cordon.EMITS, fail=failed),
        Function("taint", taint.taint, taint.CONSUMES, taint.EMITS, fail=failed),
        Function("evict", evict.evict, evict.CONSUMES, evict.EMITS, fail=failed, looks=Looks(evict.LOOKING)),
        Function("status", status.status, status.CONSUMES, status.EMITS),
        Function("restore", restore.restore, restore.CONSUMES, restore.EMITS, kind="NodeMaintenance", fail=failed),
        Function(
            "guard", guard.guard, guard.CONSUMES, guard.EMITS, kind="Node", fail=failed, looks=Looks(guard.LOOKING)
        ),
        Function("resync", resync.resync, resync.CONSUMES, resync.EMITS, fail=failed, looks=Looks(resync.LOOKING)),
        Function(
            "renew-certificates",
            certificates.renew_certificates,
            certificates.CONSUMES,
            certificates.EMITS,
            kind="Secret",
            looks=Looks(certificates.LOOKING),
        ),
        Function("record", record.record, record.CONSUMES, record.EMITS),
    )
}


def create_app(cluster: Cluster | None = None) -> Flask:
    """The Flask app on `cluster` (default: the one the environment names). Raises `SystemExit` for a wrong FUNCTION."""
    logs.configure()
    served = chosen()
    app = Flask("functions")
    app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT
    door, publisher, spans = cluster or Cluster(), Publisher.of_environment(), Spans.of_environment()
    for function in served:
        view = handler(function, door, publisher, spans)
        app.add_url_rule(f"/{function.name}", function.name, view, methods=["POST"])
    if len(served) == 1:
        app.add_url_rule("/", "alone", app.view_functions[served[0].name], methods=["POST"])
    health.add_pages(app, door)
    return app


def chosen() -> list[Function]:
    """The functions that the environment asks for.

    Raises `SystemExit` for a wrong FUNCTION or setting, and for a collector of spans without the library for it.
    """
    alone = os.environ.get("FUNCTION")
    if alone and alone not in FUNCTIONS:
        raise SystemExit(f"FUNCTION={alone} is none of {', '.join(FUNCTIONS)}; unset it to serve all")
    try:
        Retention.of(os.environ)
        per_second(os.environ)
        wanted(os.environ)
        Settings.of(os.environ)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    return [FUNCTIONS[alone]] if alone else list(FUNCTIONS.values())
