"""The running console, and a browser with the user actions that tests need."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from console.web.node_rows import build_html_id
from localcluster.programs.packages import find_program
from localcluster.web_console import WebConsole
from tests.chain.environment import EventChainEnvironment

T = TypeVar("T")
TIMEOUT_SECONDS = 20
PHONE_VIEWPORT, DESKTOP_VIEWPORT = (390, 844), (1280, 800)
CHROMIUM_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)


@dataclass(frozen=True)
class Site:
    """A cluster with the running product, and its console."""

    environment: EventChainEnvironment
    console: WebConsole

    def build_url(self, path: str, **query: str) -> str:
        """Return the URL of a page."""
        return build_url(self.console, path, **query)


def build_url(console: WebConsole, path: str, **query: str) -> str:
    """Return the URL of a page."""
    return f"{console.url}{path}{'?' + urlencode(query) if query else ''}"


def start_browser() -> Chrome:
    """Start a Chromium with an empty profile.

    Raises `LocalClusterError`, which names the package to install, if Chromium is not installed.
    """
    options = ChromeOptions()
    options.binary_location = str(find_program("chromium"))
    for flag in (*CHROMIUM_FLAGS, f"--user-data-dir={tempfile.mkdtemp(prefix='chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Chrome(options=options, service=Service(str(find_program("chromedriver"))))


class Browser:
    """One window of a real Chromium that shows one console."""

    def __init__(self, driver: Chrome, console: WebConsole) -> None:
        self.driver, self._console = driver, console

    def emulate_display(self, size: tuple[int, int] = DESKTOP_VIEWPORT, *, is_dark: bool = False) -> None:
        """Emulate a viewport size and the preference for a light or dark theme."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE_VIEWPORT}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, path: str, **query: str) -> None:
        """Load a page, and wait until the page's event stream, if any, is connected."""
        self.driver.get(build_url(self._console, path, **query))
        if self.find_all("[sse-connect]"):
            self.wait_until(lambda: self.get_text("#connection") == "live")

    def open_nodes(self, *names: str) -> None:
        """Open the list of nodes, filtered by the prefix of the first name."""
        self.open("/nodes", q=names[0].rsplit("-", 1)[0] if names else "")

    def list_node_names(self) -> list[str]:
        """Return the names in the list of nodes, all read by one script, because the page may change between calls."""
        script = "return [...document.querySelectorAll('#nodes tr:not([hidden]) th')].map(item => item.innerText)"
        names: list[str] = self.run_script(script)
        return names

    def find_all(self, selector: str) -> list[WebElement]:
        """Return all elements that match a CSS selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def wait_for_element(self, selector: str) -> WebElement:
        """Wait for an element that matches a CSS selector, and return it."""
        return self.wait_until(lambda: self.find_all(selector))[0]

    def click(self, selector: str) -> None:
        """Wait for an element that matches a CSS selector, and click it.

        If a live update replaces the element between the two calls, the new element is clicked.
        """

        def try_click() -> bool:
            with suppress(StaleElementReferenceException):
                self.wait_for_element(selector).click()
                return True
            return False

        self.wait_until(try_click)

    def get_text(self, selector: str) -> str:
        """Return the element's text, or "" if the element does not exist.

        One script finds and reads the element, because the page may change between two calls.
        """
        script = "const found = document.querySelector(arguments[0]); return found ? found.innerText : ''"
        return str(self.run_script(script, selector)).strip()

    def get_cell_text(self, node: str, name: str) -> str:
        """Return the text of a cell in the node's row, such as `state`, `progress` or `why`."""
        return self.get_text(f"#{build_html_id(node)}-{name}")

    def run_script(self, text: str, *arguments: Any) -> Any:
        """Run a script in the page, and return its result."""
        return self.driver.execute_script(text, *arguments)

    def wait_until(self, predicate: Callable[[], T], seconds: float = TIMEOUT_SECONDS) -> T:
        """Wait until `predicate` returns a true value, and return it; the timeout error contains the page's text."""
        wait = WebDriverWait(self.driver, seconds, poll_frequency=0.1)
        try:
            return wait.until(lambda _: predicate())
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}; the page shows: {self.get_text('body')}") from error

    def select_node(self, node: str) -> None:
        """Click the node's checkbox."""
        self.click(f"#{build_html_id(node)} input")

    def open_menu(self, node: str) -> list[str]:
        """Open the node's menu, and return the texts of its items."""
        self.click(f"#{build_html_id(node)} summary")
        return [item.text for item in self.find_all(f"#{build_html_id(node)}-offers li")]

    def wait_for_dialog(self) -> str:
        """Wait until a dialog is open, and return the dialog's text."""
        return self.wait_until(lambda: self.get_text("dialog[open]"))

    def open_event(self, event_name: str) -> None:
        """Open an event in the timeline with the keyboard."""
        marker = self.wait_for_element(f".lanes a[aria-label^='{event_name}']")
        self.run_script("arguments[0].focus()", marker)
        marker.send_keys("\n")
        self.wait_until(lambda: self.get_text("#window-body h2") == event_name)

    def select_tab(self, tab: str) -> None:
        """Click a tab of the open event, and wait until it is the current one."""
        link = f"dialog[open] .tabs a[href$='tab={tab}']"
        self.click(link)
        self.wait_for_element(f"{link}[aria-current]")

    def replay_event(self) -> list[list[str]]:
        """Replay the open event; return name, result, recorded response and new response for each function."""
        self.select_tab("replay")
        self.click("dialog[open] .replay button")
        self.wait_until(lambda: self.find_all("#replayed table"))
        rows = self.find_all("#replayed tbody tr:not(.differs)")
        return [[cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in rows]

    def confirm_dialog(self, reason: str = "") -> None:
        """Enter the reason unless it is empty, click the dialog's button, and wait until the dialog is closed."""
        self.wait_for_dialog()
        if reason:
            self.wait_for_element("dialog[open] input[name=reason]").send_keys(reason)
        self.click("dialog[open] .buttons button")
        self.wait_until(lambda: not self.find_all("dialog[open]"))

    def take_errors(self) -> list[str]:
        """Return the browser's errors since the last call: blocked or failed scripts, styles and connections."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]  # type: ignore[no-untyped-call]
