"""Runs passes of `renew-certificates`, and kills the process of each pass after its first write.

Usage: `killed_pass KUBECONFIG PROPAGATION_DELAY_SECONDS`.

Each line on stdin is the time of one pass, which runs in its own process. The reply on stdout is the exit code of that
process: -9 if it was killed, 0 if nothing was left to write.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import datetime, timedelta
from typing import Any

from functions.certificates.renewal import renew_all
from functions.certificates.settings import Settings
from kube.client.api import Api
from kube.paths import Object


class SelfKillingApi(Api):
    """An API client that kills its process after the response to its last allowed write.

    `writes_left` is the number of writes that the client still allows, initially one.
    """

    writes_left = 1

    async def request(self, method: str, path: str, **options: Any) -> Object:
        response = await super().request(method, path, **options)
        if method != "GET" and not path.endswith(("/events", "/selfsubjectreviews")):
            SelfKillingApi.writes_left -= 1
            if SelfKillingApi.writes_left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return response


async def run_pass(kubeconfig: str, now: str, propagation_delay_seconds: str) -> None:
    api = await SelfKillingApi.connect(kubeconfig)
    settings = Settings(propagation_delay=timedelta(seconds=float(propagation_delay_seconds)))
    errors = (await renew_all(api, settings, datetime.fromisoformat(now))).errors
    await api.close()
    assert errors == []


def main(kubeconfig: str, propagation_delay_seconds: str) -> None:
    """Run each pass in a forked process, because the imports take a hundred times as long as a pass."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(run_pass(kubeconfig, line.strip(), propagation_delay_seconds))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
