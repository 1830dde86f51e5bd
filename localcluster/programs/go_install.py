"""Runs `go install` in module directories, and reports the progress with the estimated time left."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from localcluster.errors import LocalClusterError

DOWNLOADS = 4
"""Number of modules whose sources are downloaded concurrently."""
STALE = "{{if .Stale}}stale\t{{.ImportPath}}{{end}}"
"""A template for `go list`: prints one line for each package that is not in Go's build cache."""
OFFLINE = "the Go modules cannot be downloaded: if this machine is behind a proxy, set HTTPS_PROXY or GOPROXY"
NO_DEBUG_INFORMATION = "-gcflags=all=-dwarf=false"
"""The linker discards debug information; not generating it saves a tenth of the compile time."""
LINK_PACKAGES = 40
"""Linking one program takes about as long as compiling this many packages."""
MIN_SHARE = 0.04
"""Share of the work that must be done before the remaining time is estimated."""
REPORT_SECONDS = 15.0
"""Seconds between two progress lines in a log; a terminal shows one line that is updated."""


@dataclass(frozen=True)
class Install:
    """One `go install` command.

    Attributes:
        module: The directory with the go.mod.
        packages: The main packages to build; `tool` stands for all packages in the tool lines of go.mod.
        folder: The directory for the programs.
        flags: Build flags.
    """

    module: Path
    packages: tuple[str, ...]
    folder: Path
    flags: tuple[str, ...]


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a go command: the user's own, without settings that change what is built."""
    return {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off", **more}


def install(go: Path, installs: Sequence[Install], title: str, programs: int) -> None:
    """Run all `installs` and show the progress under `title`.

    Raises `LocalClusterError` with the end of go's output if one of them fails.

    Args:
        go: The go command.
        installs: The commands to run.
        title: The name in the progress output.
        programs: The number of programs that the commands build in total.
    """
    progress = Progress(title, programs, {each.folder for each in installs})
    running = _Processes(go, progress)
    with progress.shown(), ThreadPoolExecutor(DOWNLOADS) as threads:
        try:
            list(threads.map(running.plan, installs))
            progress.compile()
            for each in installs:  # one by one: go uses all cores, and shared packages are compiled once
                running.install(each)
        except BaseException:
            running.kill()
            raise


class _Processes:
    """The go commands of one build; if one fails, all are killed."""

    def __init__(self, go: Path, progress: Progress) -> None:
        self._go, self._progress = go, progress
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._killed = False

    def plan(self, wanted: Install) -> None:
        """Download the sources, and add the packages that must be compiled to the progress."""

        def take(line: str) -> bool:
            mark, _, package = line.partition("\t")
            if mark == "stale":
                self._progress.add(wanted.module, package)
            return bool(package) or self._progress.take(wanted.module, line)

        self._run(wanted, ("list", "-deps", "-f", STALE), take, OFFLINE)

    def install(self, wanted: Install) -> None:
        """Compile and link the programs."""
        self._run(wanted, ("install", "-v"), lambda line: self._progress.take(wanted.module, line))

    def kill(self) -> None:
        """Kill the running commands, and start no more."""
        with self._lock:
            self._killed = True
            for process in self._running:
                process.kill()

    def _run(self, wanted: Install, words: tuple[str, ...], take: Callable[[str], bool], remedy: str = "") -> None:
        """Run one go command, and pass each line of its output to `take`, which returns whether it is expected.

        Raises `LocalClusterError` with the last unexpected lines and the remedy.
        """
        tail: deque[str] = deque(maxlen=20)
        with self._started([str(self._go), *words, *wanted.flags, *wanted.packages], wanted) as process:
            for line in process.stdout or ():
                if not take(line.rstrip("\n")):
                    tail.append(line.rstrip())
        if process.returncode:
            why = "\n  ".join([*tail, *([remedy] if remedy else [])])
            what = f"building {wanted.module.name} failed (go {words[0]}, exit {process.returncode})"
            raise LocalClusterError(f"{what}:\n  {why}")

    @contextmanager
    def _started(self, command: list[str], wanted: Install) -> Iterator[subprocess.Popen[str]]:
        given = environment(GOBIN=str(wanted.folder))
        pipe, both = subprocess.PIPE, subprocess.STDOUT
        with self._lock:
            if self._killed:
                raise LocalClusterError("the build was ended")
            process = subprocess.Popen(command, cwd=wanted.module, env=given, stdout=pipe, stderr=both, text=True)
            self._running.add(process)
        with process:
            yield process
        with self._lock:
            self._running.remove(process)


class Progress:
    """The progress of a build, measured in compiled packages and linked programs.

    Args:
        title: The name in the progress output.
        programs: The number of programs to link.
        folders: The directories into which go writes the programs.
    """

    def __init__(self, title: str, programs: int, folders: set[Path]) -> None:
        self._title, self._programs, self._folders = title, programs, folders
        self._packages: set[tuple[Path, str]] = set()
        self._begun: set[tuple[Path, str]] = set()
        self._downloaded = 0
        self._compiling_since: float | None = None

    def add(self, module: Path, package: str) -> None:
        """Add a package that must be compiled for a module."""
        self._packages.add((module, package))

    def compile(self) -> None:
        """Record that all sources are downloaded and compiling begins."""
        self._compiling_since = monotonic()

    def take(self, module: Path, line: str) -> bool:
        """Count a line of go's output; return whether it reports progress."""
        if line.startswith("go: downloading "):
            self._downloaded += 1
            return True
        if (module, line) not in self._packages:
            return False
        self._begun.add((module, line))
        return True

    def text(self) -> str:
        """Return the progress line."""
        if self._compiling_since is None:
            return f"building {self._title}: downloading sources, {self._downloaded} modules so far"
        linked = sum(1 for folder in self._folders for _ in folder.glob("*"))
        left = seconds_left(*self._work(linked), monotonic() - self._compiling_since)
        return f"building {self._title}: {linked} of {self._programs} programs, {_time_left(left)}"

    def _work(self, linked: int) -> tuple[int, int]:
        """Return the work done and the total work, as numbers of packages."""
        links = self._programs * LINK_PACKAGES
        return len(self._begun) + linked * LINK_PACKAGES, len(self._packages) + links

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress while the block runs."""
        from rich.console import Console  # imported late: usually everything is built already

        console, ended = Console(), threading.Event()
        is_terminal = console.is_terminal
        if not is_terminal:
            print(self.text(), flush=True)
        with console.status(self.text()) as status:

            def report() -> None:
                while not ended.wait(0.5 if is_terminal else REPORT_SECONDS):
                    if is_terminal:
                        status.update(self.text())
                    else:
                        print(self.text(), flush=True)

            reporter = threading.Thread(target=report, daemon=True)
            reporter.start()
            try:
                yield
            finally:
                ended.set()
                reporter.join()


def seconds_left(done: int, whole: int, elapsed: float) -> float | None:
    """Return the estimated time for the remaining work, or None if too little is done for an estimate."""
    if done < whole * MIN_SHARE:
        return None
    return elapsed * (whole - done) / done


def _time_left(seconds: float | None) -> str:
    if seconds is None:
        return "estimating the time left"
    if seconds < 60:
        return "less than a minute left"
    return f"about {seconds / 60:.0f} min left"
