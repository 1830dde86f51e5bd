"""Structured logging of functions and local delivery: one JSON object per line on standard output (KNM-5, C31)."""

from __future__ import annotations

import json
import logging
import logging.config
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

LOGGER = logging.getLogger("delivery")
CONTEXT: ContextVar[dict[str, Any]] = ContextVar("fields of every line", default={})  # noqa: B039 - never changed


class JsonLines(logging.Formatter):
    """Formatter that writes a record as one JSON object.

    The fields are `level`, `ts` (epoch seconds), `logger`, `msg`, those of `every_line`, and the record's own `fields`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one JSON object without line breaks."""
        line = {"level": record.levelname.lower(), "ts": round(record.created, 6), "logger": record.name}
        line |= {"msg": record.getMessage(), **CONTEXT.get(), **getattr(record, "fields", {})}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


SETTINGS: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": JsonLines}},
    "handlers": {"out": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "json"}},
    "root": {"level": "INFO", "handlers": ["out"]},
    "loggers": {"gunicorn.error": {"level": "INFO", "handlers": ["out"], "propagate": False}},
}
"""Settings for `logging.config`: all records use `JsonLines`, including gunicorn's; the handler flushes each."""


def configure() -> None:
    """Configure logging by `SETTINGS`, unless gunicorn or another host program has configured it already."""
    if not logging.getLogger().handlers:
        logging.config.dictConfig(SETTINGS)


@contextmanager
def every_line(**fields: Any) -> Iterator[None]:
    """Add these fields to each line that this thread (or task) logs within the block."""
    before = CONTEXT.set({**CONTEXT.get(), **fields})
    try:
        yield
    finally:
        CONTEXT.reset(before)


def entry_of(line: str) -> dict[str, Any] | None:
    """Parse a line of such a log; return None for other text, as a child process may write to the same output."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "msg" in entry else None


def log(message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Write a log line of the local delivery."""
    LOGGER.log(level, message, extra={"fields": fields})
