"""Looks at all certificates that are killed after their first write: `dying KUBECONFIG PAUSE`.

Each line read is the moment of a look, a process of its own, and is answered with how that ended: -9 when it was
killed, 0 when it has done all that was to be done.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import datetime, timedelta
from typing import Any

from functions.certificates.settings import Settings
from functions.certificates.survey import renewed
from kube.door.api import Api
from kube.paths import Object


class Dying(Api):
    """A door whose owner dies when the answer to its first write has come, or to another one of `left`."""

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
    """A fork for each look: to import all of it costs a hundred times as much as a look."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(look(kubeconfig, line.strip(), pause))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
