// Behavior that htmx does not provide: the dialog, keyboard navigation in menus, copy buttons, sorting and
// filtering of nodes, the selection count, the zoom of a timeline, ages, the connection state.
"use strict";

// Styles show the controls that need this script only below this class.
document.documentElement.classList.add("scripted");

const dialog = document.getElementById("window");
const body = document.getElementById("window-body");

// Open the dialog when a response fills it. An empty response means success: close the dialog and clear the selection.
body.addEventListener("htmx:afterSwap", (event) => {
  if (event.target !== body) return;
  if (!body.querySelector("*")) {
    dialog.close();
    for (const box of document.querySelectorAll("input[name=node]:checked")) box.checked = false;
    showCount();
    return;
  }
  if (!dialog.open) dialog.showModal();
  const first = body.querySelector("[autofocus]") || body.querySelector("a, button, input");
  if (first) first.focus();
});
body.addEventListener("click", (event) => {
  if (event.target.closest("a.cancel")) {
    event.preventDefault();
    dialog.close();
  }
});
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();  // the backdrop, because the content covers the dialog
});
dialog.addEventListener("close", () => body.replaceChildren());

// Copy the command next to a copy button. Browsers offer the clipboard only over HTTPS and on this machine; elsewhere,
// select the command, so that the user can copy it with the keyboard.
const COPIED_MILLISECONDS = 2000;
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code);
    return;
  }
  const label = button.textContent;
  button.textContent = "Copied";
  button.classList.add("copied");
  setTimeout(() => {
    button.textContent = label;
    button.classList.remove("copied");
  }, COPIED_MILLISECONDS);
});

// Keep at most one menu open. Arrow keys move within it; Escape or a click elsewhere closes it.
function closeMenus(except) {
  for (const menu of document.querySelectorAll("details.dropdown[open]")) {
    if (menu === except) continue;
    if (menu.contains(document.activeElement)) menu.querySelector("summary").focus();
    menu.open = false;
  }
}
document.addEventListener("click", (event) => {
  closeMenus(event.target.closest("summary")?.parentElement);
});
document.addEventListener("keydown", (event) => {
  const menu = event.target.closest("details.dropdown");
  if (!menu) return;
  const items = [...menu.querySelectorAll("li a")];
  const at = items.indexOf(document.activeElement);
  if (event.key === "Escape" && menu.open) {
    menu.open = false;
    menu.querySelector("summary").focus();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    menu.open = true;
    const step = event.key === "ArrowDown" ? 1 : -1;
    items[(at + step + items.length) % items.length]?.focus();
  }
});

// Show the number of selected nodes.
function showCount() {
  const label = document.getElementById("count");
  if (!label) return;
  const boxes = [...document.querySelectorAll("tbody input[name=node]")];
  const selected = boxes.filter((box) => box.checked).length;
  label.textContent = selected ? `${selected} selected` : "None selected";
  // aria-disabled keeps the buttons in the tab order. Without this script, the server answers that no node is selected.
  for (const button of document.querySelectorAll(".bulk button")) button.setAttribute("aria-disabled", String(!selected));
  const all = document.getElementById("all");
  all.checked = selected > 0 && selected === boxes.length;
  all.indeterminate = selected > 0 && selected < boxes.length;
}
document.addEventListener("change", (event) => {
  if (event.target.id === "all")
    for (const box of document.querySelectorAll("tbody input[name=node]")) box.checked = event.target.checked;
  showCount();
});

// Tell the user to select nodes first, before htmx or the form sends a request for none.
document.addEventListener("click", (event) => {
  if (!event.target.closest('.bulk button[aria-disabled="true"]')) return;
  event.preventDefault();
  event.stopPropagation();
  document.getElementById("count").textContent = "Select nodes first";
}, { capture: true });

// Show times as ages, and keep the ages up to date. The server's clock may be ahead of the browser's.
const CLOCK_SKEW_SECONDS = 60;
function showAges() {
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const age = Math.round((Date.now() - Date.parse(time.dateTime)) / 1000);
    const isFuture = age < -CLOCK_SKEW_SECONDS;
    const seconds = isFuture ? -age : Math.max(0, age);
    const [amount, unit] =
      seconds < 120 ? [seconds, "s"] : seconds < 7200 ? [Math.floor(seconds / 60), "min"]
      : seconds < 172800 ? [Math.floor(seconds / 3600), "h"] : [Math.floor(seconds / 86400), "d"];
    const text = isFuture ? `in ${amount} ${unit}` : `${amount} ${unit} ago`;
    if (time.textContent !== text) time.textContent = text;
    time.title = time.dateTime;
  }
}
showAges();
setInterval(showAges, 5000);
document.addEventListener("htmx:afterSettle", () => { showAges(); showCount(); });

// Show whether the page receives live updates.
const connection = document.getElementById("connection");
function showConnection(state) {
  connection.hidden = false;
  connection.classList.toggle("off", state !== "live");
  if (connection.textContent !== state) connection.textContent = state;
}
function showConnected() {
  showConnection(document.querySelector("#stale p") ? "outdated" : "live");
}
document.addEventListener("htmx:sseOpen", showConnected);
document.addEventListener("htmx:sseMessage", showConnected);
document.addEventListener("htmx:oobAfterSwap", (event) => {
  if (event.target.id === "stale") showConnected();
});
document.addEventListener("htmx:sseError", () => showConnection(document.hidden ? "paused" : "reconnecting"));

// If a periodic request fails with 5xx, from the console or from a proxy, keep the content. If the element has no content
// yet, show the error.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.target !== event.detail.requestConfig.elt || event.detail.xhr.status < 500) return;
  event.detail.shouldSwap = event.target.querySelector(".loading") !== null;
});

// Close the streams of a hidden page. When the page is visible again, an error event makes the extension reopen them.
let streams = [];
let paused = [];
function pauseStreams() {
  for (const stream of streams) stream.close();
  paused.push(...streams.splice(0));
  showConnection("paused");
}
htmx.createEventSource = (url) => {
  const stream = new EventSource(url, { withCredentials: true });
  streams = [...streams.filter((source) => source.readyState !== EventSource.CLOSED), stream];
  if (document.hidden) pauseStreams();
  return stream;
};
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    streams = streams.filter((source) => source.readyState !== EventSource.CLOSED);
    if (streams.length) pauseStreams();
  } else {
    for (const stream of paused.splice(0)) stream.dispatchEvent(new Event("error"));
  }
});
showCount();

// Update the list of events every two seconds, as a page about an upgrade run does. The list is paused while the user
// reads it: while an event is open, after scrolling, and in a hidden tab. An update keeps the open groups open, and
// marks the new events.
const TAIL_SECONDS = 2;
const tail = document.getElementById("tail");
const tailButton = document.getElementById("tail-button");
let isTailStopped = false;
function findTailPause() {
  if (isTailStopped) return "Paused";
  if (dialog.open) return "Paused while an event is open";
  return tail.getBoundingClientRect().top < 0 ? "Paused while you read: scroll to the top to continue" : "";
}
function updateTail() {
  const pause = findTailPause();
  const state = document.getElementById("tail-state");
  state.textContent = pause || "Live";
  state.classList.toggle("off", pause !== "");
  if (!pause && !document.hidden) tail.dispatchEvent(new Event("tail"));
}
function getEventLinks() {
  return [...tail.querySelectorAll("[id^=event-]")];
}
function getGroups() {
  return [...tail.querySelectorAll("details[id]")];
}
if (tail) {
  let shownGroups = new Map();
  let shownEvents = new Set();
  tail.addEventListener("htmx:beforeSwap", (event) => {
    if (event.target !== tail) return;
    shownGroups = new Map(getGroups().map((group) => [group.id, group.open]));
    shownEvents = new Set(getEventLinks().map((link) => link.id));
  });
  tail.addEventListener("htmx:afterSwap", (event) => {
    if (event.target !== tail) return;
    for (const group of getGroups()) group.open = shownGroups.get(group.id) ?? group.open;
    for (const link of getEventLinks()) link.closest("tr").classList.toggle("arrived", !shownEvents.has(link.id));
  });
  tailButton.addEventListener("click", () => {
    isTailStopped = !isTailStopped;
    tailButton.setAttribute("aria-pressed", String(isTailStopped));
    updateTail();
  });
  updateTail();
  setInterval(updateTail, TAIL_SECONDS * 1000);
}
