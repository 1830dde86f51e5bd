"""The list of all functions of all components, and the Flask app that serves them.

With `FUNCTION=evict`, the app serves only that function, at `/` and `/evict`. If `FUNCTION` is unset, it serves all
functions by path. Gunicorn (`functions.app:create_app()`), func's middleware or a test client runs the app.
"""

from __future__ import annotations

import os

from flask import Flask

from eventing import logs
from eventing.journal.retention import Retention
from eventing.http_binding import BODY_LIMIT
from functions import record
from functions.certificates import renew_certificates as certificates
from functions.certificates.settings import Settings
from functions.cpu_labels import label_cpu
from functions.maintenance import begin, cordon, evict, guard, restore, resync, status, taint
from functions.maintenance.event_objects import failed
from functions.mutex import (
    await_version,
    check_rule,
    check_run,
    check_target,
    claim_pools,
    detect_upgrade,
    edit_pools,
    label_nodes,
    pause_pools,
    release_node,
    restore_pools,
    resync_runs,
    run_job,
)
from functions.mutex.active_run import patience
from functions.mutex.event_objects import unanswered
from functions.serving import health
from functions.serving.attempts import Publisher
from functions.serving.function import Function
from functions.serving.handler import handler
from functions.serving.pass_queue import Looks
from functions.serving.tracing import Spans, wanted
from functions.virtualization import migrate, protect
from functions.virtualization.migration_snapshot import slots
from kube.client.eviction_limits import per_second
from kube.client.sync_client import Cluster

FUNCTIONS = {
    function.name: function
    for function in (
        Function("begin", begin.begin, begin.CONSUMES, begin.EMITS, kind="NodeMaintenance", fail=begin.could_not_begin),
        Function("cordon", cordon.cordon, cordon.CONSUMES, cordon.EMITS, fail=failed),
        Function("taint", taint.taint, taint.CONSUMES, taint.EMITS, fail=failed),
        Function(
            "evict",
            evict.evict,
            evict.CONSUMES,
            evict.EMITS,
            fail=failed,
            looks=Looks(evict.LOOKING),
            late=evict.LATE,
            ours_alone=True,
        ),
        Function("status", status.status, status.CONSUMES, status.EMITS, ours_alone=True),
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
        Function("check-rule", check_rule.check_rule, check_rule.CONSUMES, check_rule.EMITS, fail=unanswered),
        Function("check-target", check_target.check_target, check_target.CONSUMES, check_target.EMITS, fail=unanswered),
        Function("check-run", check_run.check_run, check_run.CONSUMES, check_run.EMITS, fail=unanswered),
        Function(
            "detect-upgrade",
            detect_upgrade.detect_upgrade,
            detect_upgrade.CONSUMES,
            detect_upgrade.EMITS,
            fail=unanswered,
        ),
        Function("claim-pools", claim_pools.claim_pools, claim_pools.CONSUMES, claim_pools.EMITS, fail=unanswered),
        Function("pause-pools", pause_pools.pause_pools, pause_pools.CONSUMES, pause_pools.EMITS, fail=unanswered),
        Function("label-nodes", label_nodes.label_nodes, label_nodes.CONSUMES, label_nodes.EMITS, fail=unanswered),
        Function("edit-pools", edit_pools.edit_pools, edit_pools.CONSUMES, edit_pools.EMITS, fail=unanswered),
        Function("run-job", run_job.run_job, run_job.CONSUMES, run_job.EMITS, fail=unanswered),
        Function("release-node", release_node.release_node, release_node.CONSUMES, release_node.EMITS, fail=unanswered),
        Function(
            "await-version",
            await_version.await_version,
            await_version.CONSUMES,
            await_version.EMITS,
            fail=unanswered,
        ),
        Function(
            "restore-pools",
            restore_pools.restore_pools,
            restore_pools.CONSUMES,
            restore_pools.EMITS,
            fail=unanswered,
        ),
        Function(
            "resync-runs",
            resync_runs.resync_runs,
            resync_runs.CONSUMES,
            resync_runs.EMITS,
            fail=unanswered,
            looks=Looks(resync_runs.LOOKING),
        ),
        Function("migrate", migrate.migrate, migrate.CONSUMES, migrate.EMITS, looks=Looks(migrate.LOOKING)),
        Function("protect", protect.protect, protect.CONSUMES, protect.EMITS, looks=Looks(protect.LOOKING)),
        Function("label-cpu", label_cpu.label_cpu, label_cpu.CONSUMES, label_cpu.EMITS, looks=Looks(label_cpu.LOOKING)),
        Function("record", record.record, record.CONSUMES, record.EMITS),
    )
}


def create_app(cluster: Cluster | None = None) -> Flask:
    """Create the Flask app; by default it uses the cluster that the environment names.

    Raises `SystemExit` for an invalid environment, as `chosen` does.
    """
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
    """Return the functions that the environment selects.

    Raises `SystemExit` for an unknown FUNCTION or an invalid setting, and if the environment names a trace collector
    but the OpenTelemetry library is not installed.
    """
    alone = os.environ.get("FUNCTION")
    if alone and alone not in FUNCTIONS:
        raise SystemExit(f"FUNCTION={alone} is none of {', '.join(FUNCTIONS)}; unset it to serve all")
    try:
        Retention.of(os.environ)
        per_second(os.environ)
        wanted(os.environ)
        Settings.of(os.environ)
        patience(os.environ)
        slots(os.environ)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    return [FUNCTIONS[alone]] if alone else list(FUNCTIONS.values())
