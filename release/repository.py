"""Runs git in a checkout of this project. Nothing here contacts another repository."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from release.errors import ReleaseError

MAX_LISTED_FILES = 3


def run_git(directory: Path, *arguments: str) -> str:
    """Run a git command, and return its output without the last newline. Raises `ReleaseError` with git's reason."""
    done = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise ReleaseError(f"git {arguments[0]} failed: {'; '.join(lines) or f'exit status {done.returncode}'}")
    return done.stdout.rstrip("\n")


def check_clean(root: Path) -> None:
    """Check that all files are committed. Raises `ReleaseError`, which names some of the changed files."""
    changes = run_git(root, "status", "--porcelain").splitlines()
    if changes:
        more = f" and {len(changes) - MAX_LISTED_FILES} more" if len(changes) > MAX_LISTED_FILES else ""
        files = ", ".join(line[3:] for line in changes[:MAX_LISTED_FILES])
        raise ReleaseError(f"the work tree has changes that are not committed: {files}{more}: commit or stash them")


def check_no_tag(root: Path, tag: str) -> None:
    """Check that a tag does not exist. Raises `ReleaseError`."""
    if run_git(root, "tag", "--list", tag):
        commit = run_git(root, "rev-parse", "--short", f"{tag}^{{commit}}")
        remedy = f"release the next version, or if the tag was never pushed, delete it: git tag --delete {tag}"
        raise ReleaseError(f"the tag {tag} exists already, on commit {commit}: {remedy}")


@contextmanager
def add_checkout(root: Path) -> Iterator[Path]:
    """Yield a temporary work tree of the current commit, which belongs to no branch; finally remove it."""
    with TemporaryDirectory(prefix="release-") as directory:
        checkout = Path(directory) / "checkout"
        run_git(root, "worktree", "add", "--quiet", "--detach", str(checkout))
        try:
            yield checkout
        finally:
            run_git(root, "worktree", "remove", "--force", str(checkout))


def commit_all(checkout: Path, subject: str) -> None:
    """Commit all changes of a checkout, if there are any. Raises `ReleaseError`."""
    run_git(checkout, "add", "--all")
    if run_git(checkout, "status", "--porcelain"):
        run_git(checkout, "commit", "--quiet", "--message", subject)


def create_tag(checkout: Path, tag: str, message: str) -> None:
    """Create an annotated tag on the checkout's commit; the lines of the message are kept as they are."""
    run_git(checkout, "tag", "--annotate", "--cleanup=verbatim", "--message", message, tag)


def fast_forward(root: Path, revision: str) -> None:
    """Move the current branch to a later commit. Raises `ReleaseError` if the branch has other commits by now."""
    run_git(root, "merge", "--quiet", "--ff-only", revision)
