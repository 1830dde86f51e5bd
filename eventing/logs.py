"""Log lines of functions and delivery: one JSON object a line on standard output (KNM-5, C31), flushed at once."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

LOGGER = logging.getLogger("delivery")


class JsonLines(logging.Formatter):
    """`level`, `ts` (epoch seconds), `logger`, `msg`, and the record's own `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object without line breaks."""
        line = {"level": record.levelname.lower(), "ts": round(record.created, 6), "logger": record.name}
        line |= {"msg": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure() -> None:
    """Send all records through `JsonLines`; the handler flushes each."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def log(message: str, level: int = logging.INFO, **fields: Any) -> None:
    """One line of the local delivery's."""
    LOGGER.log(level, message, extra={"fields": fields})
