"""Tests for reading the settings of `notify-owners` from environment variables."""

from __future__ import annotations

from datetime import timedelta

import pytest

from functions.app import select_functions
from functions.notifications.settings import Settings

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_default_settings_announce_after_one_minute_and_permit_no_receivers() -> None:
    assert Settings.from_environment({}) == Settings(timedelta(minutes=1), frozenset(), b"")


def test_notification_settings_are_read_from_environment() -> None:
    settings = Settings.from_environment({"NOTIFY_SECONDS": "0", "NOTIFY_HOSTS": "a.example", "NOTIFY_KEY": KEY})

    assert (settings.min_blocked, len(settings.origins), len(settings.key)) == (timedelta(0), 1, 24)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"NOTIFY_SECONDS": "a minute"}, "NOTIFY_SECONDS=a minute is not a number of seconds up to 86400"),
        ({"NOTIFY_SECONDS": "-1"}, "NOTIFY_SECONDS=-1 is not a number"),
        ({"NOTIFY_SECONDS": "86401"}, "NOTIFY_SECONDS=86401 is not a number"),
        ({"NOTIFY_HOSTS": "https://a", "NOTIFY_KEY": KEY}, "NOTIFY_HOSTS: 'https://a' is not a host"),
        ({"NOTIFY_HOSTS": "a.example"}, "NOTIFY_HOSTS is set without NOTIFY_KEY: create the Secret"),
        ({"NOTIFY_HOSTS": "a.example", "NOTIFY_KEY": "secret"}, "NOTIFY_KEY is not a key: write whsec_"),
        ({"NOTIFY_KEY": "secret"}, "NOTIFY_KEY is not a key: write whsec_"),
    ],
)
def test_error_about_invalid_setting_names_variable(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], message: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(SystemExit) as stopped:
        select_functions()

    assert str(stopped.value).startswith(message)
    assert "secret" not in str(stopped.value).lower() or environment.get("NOTIFY_KEY") != "secret"
