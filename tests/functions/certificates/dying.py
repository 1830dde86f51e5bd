"""A look at all certificates that is killed after so many writes: `dying KUBECONFIG MOMENT PAUSE WRITES`.

Ends with SIGKILL when it was killed, else with status 0, having done all that was to be done.
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
    """A door whose owner dies when the answer to its n-th write has come."""

    left = 0

    async def request(self, method: str, path: str, **options: Any) -> Object:
        answer = await super().request(method, path, **options)
        if method != "GET" and not path.endswith(("/events", "/selfsubjectreviews")):
            Dying.left -= 1
            if Dying.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return answer


async def main(kubeconfig: str, moment: str, pause: str, writes: str) -> None:
    Dying.left = int(writes)
    api = await Dying.connect(kubeconfig)
    settings = Settings(pause=timedelta(seconds=float(pause)))
    _, errors = await renewed(api, settings, datetime.fromisoformat(moment))
    await api.close()
    assert errors == []


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
