"""Reports a Python module that is not installed with the package `kubectl-maintenance`, with the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from console.operations.errors import NoResult

REMEDIES = {
    "sqlalchemy": 'install the extra "journal": pipx inject kubectl-maintenance SQLAlchemy',
    "gunicorn": 'install the extra "console": pipx inject kubectl-maintenance flask gunicorn SQLAlchemy',
    "functions": "run this command in a checkout of the repository",
}
"""Map from the name of a Python module to the remedy if it is not installed.

`gunicorn` represents all libraries of the web console, because it is imported first.
"""


@contextmanager
def explain_missing_module() -> Iterator[None]:
    """Raise `NoResult` with the remedy if an import in the `with` block does not find a module in `REMEDIES`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in REMEDIES:
            raise
        raise NoResult(f'Python module "{error.name}" is not installed', REMEDIES[error.name]) from None
