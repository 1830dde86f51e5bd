"""Completes `kubectl maintenance` in the shell: kubectl runs the executable `kubectl_complete-maintenance` on PATH.

kubectl passes the arguments after `maintenance`, of which the last is incomplete and may be "". The program prints one
candidate per line, with its description after a tab, and then the directive for the shell. A cobra command prints the
same for `__complete` (https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins, "shell completion for plugins").
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from click.shell_completion import CompletionItem, ShellComplete

from console.cli import cli

OFFER_FILES, OFFER_NO_FILES = 0, 4
"""Directives of cobra: the shell may also offer files; the shell must not offer files (`ShellCompDirective`)."""
FILE_TYPES = ("file", "dir")
COMPLETION_SECONDS = 3
"""Maximum duration of a completion, because the user waits for the shell meanwhile."""


def main() -> None:
    """Print the candidates for the arguments of this process.

    After `COMPLETION_SECONDS`, the process exits and prints nothing. A signal also interrupts what a timeout in asyncio
    does not: a credential plugin of the kubeconfig, and a name lookup in a thread.
    """
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
    signal.alarm(COMPLETION_SECONDS)
    print("\n".join(complete(sys.argv[1:])))


def complete(args: Sequence[str]) -> list[str]:
    """Return the lines to print for these arguments, of which the last is incomplete."""
    *complete_args, incomplete = args or [""]
    completion = ShellComplete(cli, {}, "kubectl maintenance", "")
    items = completion.get_completions(list(complete_args), incomplete)
    offers_files = any(item.type in FILE_TYPES for item in items)
    option = incomplete.partition("=")[0] + "=" if incomplete.startswith("--") and "=" in incomplete else ""
    candidates = [_format_item(item, option) for item in items if item.type not in FILE_TYPES]
    return [*candidates, f":{OFFER_FILES if offers_files else OFFER_NO_FILES}"]


def _format_item(item: CompletionItem[str], option: str) -> str:
    """Return the line of a candidate. In: the start of the argument, `--option=`, if a value of that option follows."""
    description = " ".join((item.help or "").split())
    return f"{option}{item.value}\t{description}" if description else f"{option}{item.value}"


if __name__ == "__main__":
    main()
