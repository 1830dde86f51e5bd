// The console's client-side behavior beyond htmx: the dialog, keyboard navigation in menus, copy buttons, sorting and
// filtering of nodes, the selection count, the zoom of a timeline, ages, and the connection state.
"use strict";

// With this class, the stylesheet shows the controls that work only with this script.
document.documentElement.classList.add("scripted");

const dialog = document.getElementById("window");
const body = document.getElementById("window-body");

// Open the dialog when htmx inserts a response into it. An empty response means success: close the dialog, and clear the
// selection of nodes.
body.addEventListener("htmx:afterSwap", (event) => {
  if (event.target !== body) return;
  if (!body.querySelector("*")) {
    dialog.close();
    for (const box of getBoxes()) box.checked = false;
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
  if (event.target === dialog) dialog.close();  // The target is the backdrop, because the content covers the dialog.
});
dialog.addEventListener("close", () => body.replaceChildren());

// Copy the command next to a copy button. Browsers provide `navigator.clipboard` only over HTTPS and on localhost, so
// select the command and copy the selection, as Ctrl+C does. If that fails, the command stays selected.
const COPIED_MILLISECONDS = 2000;
document.addEventListener("click", (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  getSelection().selectAllChildren(button.parentElement.querySelector("code"));
  if (!document.execCommand("copy")) return;
  button.textContent = "Copied";
  button.classList.add("copied");
  setTimeout(() => {
    button.textContent = "Copy";
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

// Filter and sort the nodes without a request. The URL contains the filter and the order, so that a reload or a shared
// link shows the same rows. The server renders the initial order; `RowOrder` in node_rows.py has the same rules.
const list = document.getElementById("nodes");
const filterForm = document.getElementById("filter");
const collator = new Intl.Collator("en", { numeric: true });
const view = new URLSearchParams(location.search);
const getKey = (row, column) => row.cells[column].dataset.key ?? row.cells[column].textContent.trim();
const getName = (row) => row.cells[1].textContent;

function hideRows() {
  const text = (view.get("q") ?? "").trim().toLowerCase(), state = view.get("state");
  let shown = 0;
  for (const row of list.rows) {
    const isSelected = getName(row).toLowerCase().includes(text)
      && (!state || row.querySelector("td.state").dataset.in.split(" ").includes(state));
    if (row.hidden === isSelected) row.hidden = !isSelected;
    shown += isSelected;
  }
  document.getElementById("none").hidden = shown > 0;
}

function sortRows() {
  if (list.querySelector("details[open]")) return;  // An open menu must not move; the rows are sorted when it closes.
  const heading = document.querySelector("table.nodes th[aria-sort]"), column = heading?.cellIndex ?? 2;
  const direction = heading?.getAttribute("aria-sort") === "descending" ? -1 : 1;
  const rows = [...list.rows].map((row) => ({ row, key: getKey(row, column), name: getName(row) }));
  rows.sort((a, b) => (!a.key - !b.key) || direction * collator.compare(a.key, b.key) || collator.compare(a.name, b.name));
  const focused = document.activeElement;
  let next = list.rows[0];
  for (const { row } of rows) {
    if (row !== next && row === next?.nextElementSibling) next = row;  // `next` comes later, so only `next` is moved.
    if (row === next) next = next.nextElementSibling;
    else list.insertBefore(row, next);
  }
  if (list.contains(focused)) focused.focus({ preventScroll: true });  // A moved element loses the focus.
}

function showRows() {
  if (!list) return;
  hideRows();
  sortRows();
  showCount();
}

function setView(changes) {
  for (const [name, value] of Object.entries(changes)) {
    if (value) view.set(name, value);
    else view.delete(name);
  }
  const query = view.toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
  for (const link of document.querySelectorAll("a[data-state]")) {
    if (link.dataset.state === (view.get("state") ?? "")) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  for (const heading of document.querySelectorAll("table.nodes th:has(a[data-sort])")) {
    if (heading.firstElementChild.dataset.sort !== (view.get("sort") ?? "state")) heading.removeAttribute("aria-sort");
    else heading.setAttribute("aria-sort", view.get("order") === "desc" ? "descending" : "ascending");
  }
  showRows();
}

if (list) {
  document.addEventListener("click", (event) => {
    const state = event.target.closest("a[data-state]"), column = event.target.closest("a[data-sort]");
    if (!(state || column) || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (state) return setView({ state: state.dataset.state });
    const isAscending = column.closest("th").getAttribute("aria-sort") === "ascending";
    setView({ sort: column.dataset.sort, order: isAscending ? "desc" : "" });
  });
  filterForm.addEventListener("input", () => setView({ q: filterForm.q.value.trim() }));
  filterForm.addEventListener("change", (event) => {
    if (event.target.name === "sort") setView({ sort: event.target.value, order: "" });
  });
  filterForm.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("htmx:sseMessage", showRows);
  list.addEventListener("toggle", sortRows, { capture: true });
}

// Show the number of selected nodes. The stylesheet shows the buttons while a node is selected.
const getBoxes = () => [...document.querySelectorAll("tbody input[name=node]")];
function showCount() {
  const label = document.getElementById("count");
  if (!label) return;
  const selected = getBoxes().filter((box) => box.checked);
  const hidden = selected.filter((box) => box.closest("tr").hidden).length;
  const text = `${selected.length} selected` + (hidden ? `, ${hidden} of them not shown` : "");
  label.textContent = selected.length ? text : "";
  document.querySelector(".bulk .number").textContent = text;
  const shown = getBoxes().filter((box) => !box.closest("tr").hidden);
  const all = document.getElementById("all");
  all.checked = shown.length > 0 && shown.every((box) => box.checked);
  all.indeterminate = !all.checked && selected.length > 0;
}
document.addEventListener("change", (event) => {
  if (event.target.id === "all")
    for (const box of getBoxes()) if (!box.closest("tr").hidden) box.checked = event.target.checked;
  showCount();
});
document.addEventListener("reset", () => setTimeout(showCount));  // Run after the browser has cleared the checkboxes.

// Show times as ages, and keep the ages up to date. The server's clock may be ahead of the browser's clock.
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
document.addEventListener("htmx:afterSettle", () => { showAges(); showCount(); fitTimeline(); });

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

// If a polling request fails with 5xx, keep the element's content. If the element has no content yet, show the error.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.target !== event.detail.requestConfig.elt || event.detail.xhr.status < 500) return;
  event.detail.shouldSwap = event.target.querySelector(".loading") !== null;
});

// A live update replaces a part of the page. Keep its open `details` elements open, and the focus on the same element.
let openDetails = [];
let focusedId = "";
document.addEventListener("htmx:sseBeforeMessage", () => {
  openDetails = [...document.querySelectorAll("main details[id][open]")].map((element) => element.id);
  focusedId = document.activeElement?.id ?? "";
});
document.addEventListener("htmx:sseMessage", () => {
  for (const id of openDetails) document.getElementById(id)?.setAttribute("open", "");
  if (document.activeElement === document.body && focusedId) document.getElementById(focusedId)?.focus();
});

// Zoom of the timeline, whose elements are positioned in percent of its width. Zoom 0 fits all events into the window;
// zoom 1 keeps neighboring events apart. A reload of the timeline keeps the zoom and the position.
const MAX_ZOOM = 64, TICK_PIXELS = 78;
let zoom = 1;
let plotCenter = null;
function fitTimeline() {
  const plot = document.querySelector(".plot");
  if (!plot) return;
  const svg = plot.querySelector("svg");
  const readable = Math.max(plot.clientWidth, Number(svg.getAttribute("width")));
  const width = zoom ? readable * zoom : plot.clientWidth;
  svg.style.width = `${width}px`;
  if (plotCenter !== null) plot.scrollLeft = plotCenter * width - plot.clientWidth / 2;
  let end = -Infinity;
  for (const tick of svg.querySelectorAll(".tick")) {
    const x = (parseFloat(tick.getAttribute("x")) / 100) * width;
    const isAtEnd = x + TICK_PIXELS > width;  // Such a label ends at its position instead of starting there.
    const start = isAtEnd ? x - TICK_PIXELS : x;
    const fits = start >= end;
    tick.style.visibility = fits ? "visible" : "hidden";
    tick.setAttribute("text-anchor", isAtEnd ? "end" : "start");
    if (fits) end = start + TICK_PIXELS;
  }
  const isFitted = width === plot.clientWidth;
  for (const button of document.querySelectorAll("[data-zoom]"))
    button.setAttribute("aria-disabled", String(button.dataset.zoom === "in" ? zoom >= MAX_ZOOM : isFitted));
}
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-zoom]");
  if (!button || button.getAttribute("aria-disabled") === "true") return;
  const zoomedOut = zoom > 1 ? zoom / 2 : 0;
  zoom = { in: zoom ? zoom * 2 : 1, out: zoomedOut, fit: 0 }[button.dataset.zoom];
  fitTimeline();
});
document.addEventListener("scroll", (event) => {
  const plot = event.target;
  if (plot.classList?.contains("plot")) plotCenter = (plot.scrollLeft + plot.clientWidth / 2) / plot.scrollWidth;
}, { capture: true });
addEventListener("resize", fitTimeline);

// Close the event streams of a hidden page. When the page is visible again, an error event makes htmx's SSE extension
// reopen them.
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
fitTimeline();

// Update the list of events every two seconds. Pause the updates while an event is open, after the user has scrolled, and
// in a hidden tab.
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
if (tail) {
  tailButton.addEventListener("click", () => {
    isTailStopped = !isTailStopped;
    tailButton.setAttribute("aria-pressed", String(isTailStopped));
    updateTail();
  });
  updateTail();
  setInterval(updateTail, TAIL_SECONDS * 1000);
}

// When polling replaces a part of the page, keep its `details` elements open or closed, and mark new events.
for (const part of document.querySelectorAll("#tail, #run")) {
  const getDetails = () => [...part.querySelectorAll("details[id]")];
  const getEventLinks = () => [...part.querySelectorAll("[id^=event-]")];
  let shownDetails = new Map();
  let shownEvents = new Set();
  part.addEventListener("htmx:beforeSwap", (event) => {
    if (event.target !== part) return;
    shownDetails = new Map(getDetails().map((element) => [element.id, element.open]));
    shownEvents = new Set(getEventLinks().map((link) => link.id));
  });
  part.addEventListener("htmx:afterSwap", (event) => {
    if (event.target !== part) return;
    for (const element of getDetails()) element.open = shownDetails.get(element.id) ?? element.open;
    for (const link of getEventLinks()) link.closest("tr").classList.toggle("arrived", !shownEvents.has(link.id));
  });
}

// On a phone, the navigation may be wider than the window: scroll to the entry of this page.
document.querySelector(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
