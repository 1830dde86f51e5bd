"""Runs passes over all certificates, each killed after its first write: `dying KUBECONFIG PAUSE`.

Each line on stdin is the time of one pass, which runs in its own process. The reply is the exit code of that process:
-9 if it was killed, 0 if nothing was left to write.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import datetime, timedelta
from typing import Any

from functions.certificates.settings import Settings
from functions.certificates.renewal_pass import renewed
from kube.client.api import Api
from kube.paths import Object


class Dying(Api):
    """An API client that kills its process after the response to its first write.

    `left` is the number of writes until then; another value of it selects another write.
    """

    left = 1

    async def request(self, method: str, path: str, **options: Any) -> Object:
        answer = await super().request(method, path, **options)
        if method != "GET" and not path.endswith(("/events", "/selfsubjectreviews")):
            Dying.left -= 1
            if Dying.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return answer


async def look(kubeconfig: str, moment: str, pause: str) -> None:
    api = await Dying.connect(kubeconfig)
    settings = Settings(pause=timedelta(seconds=float(pause)))
    errors = (await renewed(api, settings, datetime.fromisoformat(moment))).errors
    await api.close()
    assert errors == []


def main(kubeconfig: str, pause: str) -> None:
    """Run each pass in a fork, because the imports take a hundred times as long as a pass."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(look(kubeconfig, line.strip(), pause))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
