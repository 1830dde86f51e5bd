"""The running console, a browser for it, and what tests do with both."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from console.web.node_rows import key
from localcluster.programs.packages import find
from localcluster.web_console import Console
from tests.chain.environment import Scene

T = TypeVar("T")
SECONDS = 20
PHONE, DESK = (390, 844), (1280, 800)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)


@dataclass(frozen=True)
class Site:
    """A cluster with the running product, and its console."""

    scene: Scene
    console: Console

    def url(self, path: str, **query: str) -> str:
        """Return the URL of a page."""
        return page(self.console, path, **query)


def page(console: Console, path: str, **query: str) -> str:
    """Return the URL of a page."""
    return f"{console.url}{path}{'?' + urlencode(query) if query else ''}"


def start_browser() -> Chrome:
    """Start a Chromium with an empty profile.

    Raises `LocalClusterError`, which names the package to install, if Chromium is not installed.
    """
    options = ChromeOptions()
    options.binary_location = str(find("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={tempfile.mkdtemp(prefix='chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Chrome(options=options, service=Service(str(find("chromedriver"))))


class Browser:
    """One window of a real Chromium that shows one console."""

    def __init__(self, driver: Chrome, console: Console) -> None:
        self.driver, self._console = driver, console

    def look(self, size: tuple[int, int] = DESK, *, dark: bool = False) -> None:
        """Emulate a viewport size and the preference for a light or dark theme."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, path: str, **query: str) -> None:
        """Load a page, and wait until its event stream is connected if it has one."""
        self.driver.get(page(self._console, path, **query))
        if self.all("[sse-connect]"):
            self.until(lambda: self.text("#connection") == "live")

    def nodes(self, *names: str) -> None:
        """Open the list of nodes, filtered to the names with the prefix of the first one."""
        self.open("/nodes", q=names[0].rsplit("-", 1)[0] if names else "")

    def all(self, selector: str) -> list[WebElement]:
        """Return all elements that match a CSS selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """Wait for an element that matches a CSS selector, and return it."""
        return self.until(lambda: self.all(selector))[0]

    def text(self, selector: str) -> str:
        """Return the text of the element, "" if there is none, in one call, since the page changes by itself."""
        script = "const found = document.querySelector(arguments[0]); return found ? found.innerText : ''"
        return str(self.script(script, selector)).strip()

    def cell(self, node: str, name: str) -> str:
        """Return the text of a cell in the node's row: `state`, `progress`, `pods` or `why`."""
        return self.text(f"#{key(node)}-{name}")

    def script(self, text: str, *arguments: Any) -> Any:
        """Run a script in the page, and return its result."""
        return self.driver.execute_script(text, *arguments)

    def until(self, holds: Callable[[], T], seconds: float = SECONDS) -> T:
        """Wait until `holds` returns a true value, and return it; the timeout error contains the page's text."""
        wait = WebDriverWait(self.driver, seconds, poll_frequency=0.1)
        try:
            return wait.until(lambda _: holds())
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}; the page shows: {self.text('body')}") from error

    def choose(self, node: str) -> None:
        """Select the node's checkbox."""
        self.one(f"#{key(node)} input").click()

    def menu(self, node: str) -> list[str]:
        """Open the node's menu, and return the texts of its items."""
        self.one(f"#{key(node)} summary").click()
        return [item.text for item in self.all(f"#{key(node)}-offers li")]

    def window(self) -> str:
        """Wait until a dialog is open, and return its text."""
        return self.until(lambda: self.text("dialog[open]"))

    def press(self, kind: str) -> None:
        """Open an event of the timeline by keyboard."""
        mark = self.one(f".lanes a[aria-label^='{kind}']")
        self.script("arguments[0].focus()", mark)
        mark.send_keys("\n")
        self.until(lambda: self.text("#window-body h2") == kind)

    def replay(self) -> list[list[str]]:
        """Replay the open event, and return a row per function: name, result, recorded response and new response."""
        self.one("dialog[open] .replay button").click()
        self.until(lambda: self.all("#replayed table"))
        rows = self.all("#replayed tbody tr:not(.differs)")
        return [[cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in rows]

    def confirm(self, reason: str = "") -> None:
        """Enter the reason, if any, press the dialog's button, and wait until the dialog is closed."""
        self.window()
        if reason:
            self.one("dialog[open] input[name=reason]").send_keys(reason)
        self.one("dialog[open] .buttons button").click()
        self.until(lambda: not self.all("dialog[open]"))

    def errors(self) -> list[str]:
        """Return the browser's errors since the last call: refused or failed scripts, styles and connections."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]  # type: ignore[no-untyped-call]
