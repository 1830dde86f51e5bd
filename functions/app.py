"""Registry of the functions of all components, and the Flask app that serves them.

With `FUNCTION=evict`, the app serves only that function, at `/` and `/evict`. If `FUNCTION` is unset, it serves all
functions by path. Gunicorn (`functions.app:create_app()`), Knative func's middleware and the tests run the app.
"""

from __future__ import annotations

import os

from flask import Flask

from eventing import logs
from eventing.http_binding import MAX_BODY_BYTES
from eventing.journal.retention import Retention
from functions import record
from functions.certificates import renew_certificates as certificates
from functions.certificates.settings import Settings
from functions.cpu_labels import label_cpu
from functions.maintenance import begin, cordon, evict, guard, restore, resync, status, taint
from functions.maintenance.event_objects import build_step_failed
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
from functions.mutex.active_run import parse_upgrade_timeout
from functions.mutex.event_objects import log_failure
from functions.serving import health
from functions.serving.attempts import Publisher
from functions.serving.function import Function
from functions.serving.handler import build_view
from functions.serving.pass_queue import PassQueue
from functions.serving.tracing import AttemptTracer, is_tracing_enabled
from functions.virtualization import migrate, protect
from functions.virtualization.migration_snapshot import parse_migration_slots
from kube.client.eviction_limits import parse_evictions_per_second
from kube.client.sync_client import SyncClient

FUNCTIONS = {
    function.name: function
    for function in (
        Function(
            "begin",
            begin.begin,
            begin.CONSUMES,
            begin.EMITS,
            kind="NodeMaintenance",
            on_failure=begin.build_begin_failed,
        ),
        Function("cordon", cordon.cordon, cordon.CONSUMES, cordon.EMITS, on_failure=build_step_failed),
        Function("taint", taint.taint, taint.CONSUMES, taint.EMITS, on_failure=build_step_failed),
        Function(
            "evict",
            evict.evict,
            evict.CONSUMES,
            evict.EMITS,
            on_failure=build_step_failed,
            pass_queue=PassQueue(evict.PASS_STRATEGY),
            late_replies=evict.LATE_EVICTIONS,
            requires_signature=True,
        ),
        Function("status", status.status, status.CONSUMES, status.EMITS, requires_signature=True),
        Function(
            "restore",
            restore.restore,
            restore.CONSUMES,
            restore.EMITS,
            kind="NodeMaintenance",
            on_failure=build_step_failed,
        ),
        Function(
            "guard",
            guard.guard,
            guard.CONSUMES,
            guard.EMITS,
            kind="Node",
            on_failure=build_step_failed,
            pass_queue=PassQueue(guard.PASS_STRATEGY),
        ),
        Function(
            "resync",
            resync.resync,
            resync.CONSUMES,
            resync.EMITS,
            on_failure=build_step_failed,
            pass_queue=PassQueue(resync.PASS_STRATEGY),
        ),
        Function(
            "renew-certificates",
            certificates.renew_certificates,
            certificates.CONSUMES,
            certificates.EMITS,
            kind="Secret",
            pass_queue=PassQueue(certificates.PASS_STRATEGY),
        ),
        Function("check-rule", check_rule.check_rule, check_rule.CONSUMES, check_rule.EMITS, on_failure=log_failure),
        Function(
            "check-target", check_target.check_target, check_target.CONSUMES, check_target.EMITS, on_failure=log_failure
        ),
        Function("check-run", check_run.check_run, check_run.CONSUMES, check_run.EMITS, on_failure=log_failure),
        Function(
            "detect-upgrade",
            detect_upgrade.detect_upgrade,
            detect_upgrade.CONSUMES,
            detect_upgrade.EMITS,
            on_failure=log_failure,
        ),
        Function(
            "claim-pools", claim_pools.claim_pools, claim_pools.CONSUMES, claim_pools.EMITS, on_failure=log_failure
        ),
        Function(
            "pause-pools", pause_pools.pause_pools, pause_pools.CONSUMES, pause_pools.EMITS, on_failure=log_failure
        ),
        Function(
            "label-nodes", label_nodes.label_nodes, label_nodes.CONSUMES, label_nodes.EMITS, on_failure=log_failure
        ),
        Function("edit-pools", edit_pools.edit_pools, edit_pools.CONSUMES, edit_pools.EMITS, on_failure=log_failure),
        Function("run-job", run_job.run_job, run_job.CONSUMES, run_job.EMITS, on_failure=log_failure),
        Function(
            "release-node", release_node.release_node, release_node.CONSUMES, release_node.EMITS, on_failure=log_failure
        ),
        Function(
            "await-version",
            await_version.await_version,
            await_version.CONSUMES,
            await_version.EMITS,
            on_failure=log_failure,
        ),
        Function(
            "restore-pools",
            restore_pools.restore_pools,
            restore_pools.CONSUMES,
            restore_pools.EMITS,
            on_failure=log_failure,
        ),
        Function(
            "resync-runs",
            resync_runs.resync_runs,
            resync_runs.CONSUMES,
            resync_runs.EMITS,
            on_failure=log_failure,
            pass_queue=PassQueue(resync_runs.PASS_STRATEGY),
        ),
        Function(
            "migrate", migrate.migrate, migrate.CONSUMES, migrate.EMITS, pass_queue=PassQueue(migrate.PASS_STRATEGY)
        ),
        Function(
            "protect", protect.protect, protect.CONSUMES, protect.EMITS, pass_queue=PassQueue(protect.PASS_STRATEGY)
        ),
        Function(
            "label-cpu",
            label_cpu.label_cpu,
            label_cpu.CONSUMES,
            label_cpu.EMITS,
            pass_queue=PassQueue(label_cpu.PASS_STRATEGY),
        ),
        Function("record", record.record, record.CONSUMES, record.EMITS),
    )
}


def create_app(client: SyncClient | None = None) -> Flask:
    """Create the Flask app; by default, the API client uses the cluster that the environment configures.

    Raises `SystemExit` if the environment is invalid; see `select_functions`.
    """
    logs.configure()
    served_functions = select_functions()
    app = Flask("functions")
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    client = client or SyncClient()
    publisher, tracer = Publisher.from_environment(), AttemptTracer.from_environment()
    for function in served_functions:
        view = build_view(function, client, publisher, tracer)
        app.add_url_rule(f"/{function.name}", function.name, view, methods=["POST"])
    if len(served_functions) == 1:
        app.add_url_rule("/", "alone", app.view_functions[served_functions[0].name], methods=["POST"])
    health.add_health_routes(app, client)
    return app


def select_functions() -> list[Function]:
    """Return the functions that the environment selects.

    Raises `SystemExit` if FUNCTION is unknown, if a setting is invalid, or if a trace collector is configured but the
    OpenTelemetry library is not installed.
    """
    name = os.environ.get("FUNCTION")
    if name and name not in FUNCTIONS:
        raise SystemExit(
            f"FUNCTION={name} is unknown: set it to one of {', '.join(FUNCTIONS)}, or unset it to serve all"
        )
    try:
        Retention.from_environment(os.environ)
        parse_evictions_per_second(os.environ)
        is_tracing_enabled(os.environ)
        Settings.from_environment(os.environ)
        parse_upgrade_timeout(os.environ)
        parse_migration_slots(os.environ)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    return [FUNCTIONS[name]] if name else list(FUNCTIONS.values())
