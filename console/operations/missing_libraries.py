"""Reports a module that the package `kubectl-maintenance` does not contain, with the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from console.operations.errors import NoResult

REMEDIES = {
    "sqlalchemy": 'install the extra "journal": pipx inject kubectl-maintenance SQLAlchemy',
    "gunicorn": 'install the extra "console": pipx inject kubectl-maintenance flask gunicorn SQLAlchemy',
    "functions": "run this command in a checkout of the repository",
}
"""Module → how to make it available. `gunicorn` is the first of the console's libraries that is imported."""


@contextmanager
def explain_missing_module() -> Iterator[None]:
    """Raise `NoResult` with the remedy if an import in the block does not find one of the modules in `REMEDIES`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in REMEDIES:
            raise
        raise NoResult(f'Python module "{error.name}" is not installed', REMEDIES[error.name]) from None
