"""Kinds of objects that events are about, and the name of each in event data and among the extensions."""

from __future__ import annotations

EXTENSION_OF_KIND = {
    "NodeMaintenance": "maintenance",
    "MutexRunConfig": "run",
    "MutexRule": "rule",
    "MutexTarget": "target",
    "Round": "round",
}
