"""Runs git commands in a checkout of this project; none of them contacts another repository."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from release.errors import ReleaseError

MAX_LISTED_FILES = 3


def run_git(directory: Path, *arguments: str) -> str:
    """Run git and return its output without the last newline. Raises `ReleaseError` with git's error output."""
    done = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise ReleaseError(f"git {arguments[0]} failed: {'; '.join(lines) or f'exit status {done.returncode}'}")
    return done.stdout.rstrip("\n")


def check_clean(root: Path) -> None:
    """Raise `ReleaseError`, which lists some of the changed files, if the work tree has uncommitted changes."""
    changes = run_git(root, "status", "--porcelain").splitlines()
    if changes:
        more = f" and {len(changes) - MAX_LISTED_FILES} more" if len(changes) > MAX_LISTED_FILES else ""
        files = ", ".join(line[3:] for line in changes[:MAX_LISTED_FILES])
        raise ReleaseError(f"the work tree has changes that are not committed: {files}{more}: commit or stash them")


def check_no_tag(root: Path, tag: str) -> None:
    """Raise `ReleaseError` if a tag with this name exists."""
    if run_git(root, "tag", "--list", tag):
        commit = run_git(root, "rev-parse", "--short", f"{tag}^{{commit}}")
        remedy = f"release the next version, or if the tag was never pushed, delete it: git tag --delete {tag}"
        raise ReleaseError(f"the tag {tag} exists already, on commit {commit}: {remedy}")


@contextmanager
def add_checkout(root: Path) -> Iterator[Path]:
    """Yield a temporary work tree with the current commit, detached from all branches; remove it after the block."""
    with TemporaryDirectory(prefix="release-") as directory:
        checkout = Path(directory) / "checkout"
        run_git(root, "worktree", "add", "--quiet", "--detach", str(checkout))
        try:
            yield checkout
        finally:
            run_git(root, "worktree", "remove", "--force", str(checkout))


def commit_all(checkout: Path, subject: str) -> None:
    """Commit all changes in a checkout, if there are any. Raises `ReleaseError` if git fails."""
    run_git(checkout, "add", "--all")
    if run_git(checkout, "status", "--porcelain"):
        run_git(checkout, "commit", "--quiet", "--message", subject)


def create_tag(checkout: Path, tag: str, message: str) -> None:
    """Create an annotated tag on the checkout's commit; git keeps all lines of the message, even those with `#`."""
    run_git(checkout, "tag", "--annotate", "--cleanup=verbatim", "--message", message, tag)


def fast_forward(root: Path, revision: str) -> None:
    """Fast-forward the current branch to a revision. Raises `ReleaseError` if the branch has diverged from it."""
    run_git(root, "merge", "--quiet", "--ff-only", revision)
