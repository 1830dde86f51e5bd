"""Shell completion for `kubectl maintenance`: kubectl runs the executable `kubectl_complete-maintenance` on PATH.

kubectl passes the arguments after `maintenance`. The last argument is the incomplete word, which may be "". The program
prints one candidate per line, with a description after a tab, and then a cobra directive, as cobra's `__complete` does.
See "shell completion for plugins" in https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from click.shell_completion import CompletionItem, ShellComplete

from console.cli import cli

OFFER_FILES, OFFER_NO_FILES = 0, 4
"""Cobra's directives (`ShellCompDirective`): let the shell also complete file names, or not."""
FILE_TYPES = ("file", "dir")
COMPLETION_SECONDS = 3
"""Timeout of a completion in seconds, because the shell blocks while it waits for the candidates."""


def main() -> None:
    """Print the completion candidates for the command-line arguments of this process.

    After `COMPLETION_SECONDS`, a signal ends the process without output. Unlike an asyncio timeout, the signal also
    interrupts a credential plugin of the kubeconfig, and a DNS lookup in a thread.
    """
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
    signal.alarm(COMPLETION_SECONDS)
    print("\n".join(complete(sys.argv[1:])))


def complete(args: Sequence[str]) -> list[str]:
    """Return the lines to print for these arguments, the last of which is the incomplete word."""
    *complete_args, incomplete = args or [""]
    completion = ShellComplete(cli, {}, "kubectl maintenance", "")
    items = completion.get_completions(list(complete_args), incomplete)
    offers_files = any(item.type in FILE_TYPES for item in items)
    option = incomplete.partition("=")[0] + "=" if incomplete.startswith("--") and "=" in incomplete else ""
    candidates = [_format_item(item, option) for item in items if item.type not in FILE_TYPES]
    return [*candidates, f":{OFFER_FILES if offers_files else OFFER_NO_FILES}"]


def _format_item(item: CompletionItem[str], option: str) -> str:
    """Return the output line of a candidate; `option` is a prefix such as `--output=` if its value is completed."""
    description = " ".join((item.help or "").split())
    return f"{option}{item.value}\t{description}" if description else f"{option}{item.value}"


if __name__ == "__main__":
    main()
