"""The console at work, a browser in front of it, and what tests do with both."""

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

from console.web.rows import key
from localcluster.programs.packages import find
from localcluster.web_console import Console
from tests.chain.scene import Scene

T = TypeVar("T")
SECONDS = 20
PHONE, DESK = (390, 844), (1280, 800)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)


@dataclass(frozen=True)
class Site:
    """A cluster with the product at work on it, and its console."""

    scene: Scene
    console: Console

    def url(self, path: str, **query: str) -> str:
        """The address of a page."""
        return page(self.console, path, **query)


def page(console: Console, path: str, **query: str) -> str:
    """The address of a page."""
    return f"{console.url}{path}{'?' + urlencode(query) if query else ''}"


def start_browser() -> Chrome:
    """A Chromium with nothing in its profile. Raises `LocalClusterError`, which says what to install, without one."""
    options = ChromeOptions()
    options.binary_location = str(find("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={tempfile.mkdtemp(prefix='chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Chrome(options=options, service=Service(str(find("chromedriver"))))


class Browser:
    """One window of a real Chromium on one console."""

    def __init__(self, driver: Chrome, console: Console) -> None:
        self.driver, self._console = driver, console

    def look(self, size: tuple[int, int] = DESK, *, dark: bool = False) -> None:
        """Take a size and a preference for light or dark."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, path: str, **query: str) -> None:
        """Load a page, and wait until it is live where it has a stream."""
        self.driver.get(page(self._console, path, **query))
        if self.all("[sse-connect]"):
            self.until(lambda: self.text("#connection") == "live")

    def nodes(self, *names: str) -> None:
        """Open the list with just the nodes whose names begin so."""
        self.open("/nodes", q=names[0].rsplit("-", 1)[0] if names else "")

    def all(self, selector: str) -> list[WebElement]:
        """All elements of a CSS selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """The element of a CSS selector, awaited."""
        return self.until(lambda: self.all(selector))[0]

    def text(self, selector: str) -> str:
        """What the element shows, "" when there is none; read at one go, since the page changes by itself."""
        script = "const found = document.querySelector(arguments[0]); return found ? found.innerText : ''"
        return str(self.script(script, selector)).strip()

    def cell(self, node: str, name: str) -> str:
        """What a cell of the node's row shows: state, progress, pods or why."""
        return self.text(f"#{key(node)}-{name}")

    def script(self, text: str, *arguments: Any) -> Any:
        """The result of a script in the page."""
        return self.driver.execute_script(text, *arguments)

    def until(self, holds: Callable[[], T], seconds: float = SECONDS) -> T:
        """What `holds` gives once that is true; on failure what the page shows."""
        wait = WebDriverWait(self.driver, seconds, poll_frequency=0.1)
        try:
            return wait.until(lambda _: holds())
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}; the page shows: {self.text('body')}") from error

    def choose(self, node: str) -> None:
        """Tick the node's box."""
        self.one(f"#{key(node)} input").click()

    def menu(self, node: str) -> list[str]:
        """Open the node's menu; what it says."""
        self.one(f"#{key(node)} summary").click()
        return [item.text for item in self.all(f"#{key(node)}-offers li")]

    def window(self) -> str:
        """What the open window says, awaited."""
        return self.until(lambda: self.text("dialog[open]"))

    def press(self, kind: str) -> None:
        """Open an event of the timeline by keyboard."""
        mark = self.one(f".lanes a[aria-label^='{kind}']")
        self.script("arguments[0].focus()", mark)
        mark.send_keys("\n")
        self.until(lambda: self.text("#window-body h2") == kind)

    def replay(self) -> list[list[str]]:
        """Replay the open event: function, result, answer then and answer now; a row for each function."""
        self.one("dialog[open] .replay button").click()
        self.until(lambda: self.all("#replayed table"))
        rows = self.all("#replayed tbody tr:not(.differs)")
        return [[cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in rows]

    def confirm(self, reason: str = "") -> None:
        """Give a reason, if any, press the window's own button, and wait until the window is gone."""
        self.window()
        if reason:
            self.one("dialog[open] input[name=reason]").send_keys(reason)
        self.one("dialog[open] .buttons button").click()
        self.until(lambda: not self.all("dialog[open]"))

    def errors(self) -> list[str]:
        """What the browser complained of since last asked: scripts, styles or connections that were refused."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]  # type: ignore[no-untyped-call]
