"""Settings of the notifications about blocked drains, read from environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from kube.notifications.webhooks import Origin, parse_key, parse_permitted_origins

DEFAULT_SECONDS, MAX_SECONDS = 60, 86_400
"""Default and maximum value of the environment variable `NOTIFY_SECONDS`."""


@dataclass(frozen=True)
class Settings:
    """Settings of the step `notify-owners`.

    Attributes:
        min_blocked: How long a drain must be blocked before the blockage is announced.
        origins: The permitted origins of `spec.notify.url`; without any, no notification is sent.
        key: The key that signs notifications; may be empty only if `origins` is empty.
    """

    min_blocked: timedelta = timedelta(seconds=DEFAULT_SECONDS)
    origins: frozenset[Origin] = frozenset()
    key: bytes = b""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read the settings from the environment. Raises a `ValueError` that names the invalid variable."""
        seconds = environment.get("NOTIFY_SECONDS") or str(DEFAULT_SECONDS)
        if not (seconds.isascii() and seconds.isdecimal() and len(seconds) < 9 and int(seconds) <= MAX_SECONDS):
            raise ValueError(
                f"NOTIFY_SECONDS={seconds} is not a number of seconds up to {MAX_SECONDS}: set it to a number, such as "
                f"{DEFAULT_SECONDS}"
            )
        try:
            origins = parse_permitted_origins(environment.get("NOTIFY_HOSTS") or "")
        except ValueError as error:
            raise ValueError(f"NOTIFY_HOSTS: {error}") from None
        key_text = environment.get("NOTIFY_KEY") or ""
        if origins and not key_text:
            raise ValueError("NOTIFY_HOSTS is set without NOTIFY_KEY: create the Secret with the key for signatures")
        try:
            key = parse_key(key_text) if key_text else b""
        except ValueError as error:
            raise ValueError(f"NOTIFY_KEY is {error}") from None
        return cls(timedelta(seconds=int(seconds)), origins, key)
