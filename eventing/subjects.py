"""What events are about: kinds of objects, and what an event calls each, in its data and as an extension."""

from __future__ import annotations

SUBJECTS = {
    "NodeMaintenance": "maintenance",
    "MutexRunConfig": "run",
    "MutexRule": "rule",
    "MutexTarget": "target",
    "Round": "round",
}
