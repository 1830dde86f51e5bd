// What the pages do beside htmx: the window, menus by keyboard, how many are chosen, ages, whether the page is live.
"use strict";

const dialog = document.getElementById("window");
const body = document.getElementById("window-body");

// The window opens when something was put into it, and closes when nothing is left to say: then all was done.
body.addEventListener("htmx:afterSwap", (event) => {
  if (event.target !== body) return;
  if (!body.querySelector("*")) {
    dialog.close();
    for (const box of document.querySelectorAll("input[name=node]:checked")) box.checked = false;
    count();
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
dialog.addEventListener("close", () => body.replaceChildren());

// One menu at a time; arrow keys move in it, Escape and a click elsewhere close it.
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

// How many nodes are chosen.
function count() {
  const shown = document.getElementById("count");
  if (!shown) return;
  const boxes = [...document.querySelectorAll("tbody input[name=node]")];
  const chosen = boxes.filter((box) => box.checked).length;
  shown.textContent = chosen ? `${chosen} chosen` : "None chosen";
  const all = document.getElementById("all");
  all.checked = chosen > 0 && chosen === boxes.length;
  all.indeterminate = chosen > 0 && chosen < boxes.length;
}
document.addEventListener("change", (event) => {
  if (event.target.id === "all")
    for (const box of document.querySelectorAll("tbody input[name=node]")) box.checked = event.target.checked;
  count();
});

// Times as ages, which pass.
function ages() {
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const seconds = Math.max(0, Math.round((Date.now() - Date.parse(time.dateTime)) / 1000));
    const [amount, unit] =
      seconds < 120 ? [seconds, "s"] : seconds < 7200 ? [Math.floor(seconds / 60), "min"]
      : seconds < 172800 ? [Math.floor(seconds / 3600), "h"] : [Math.floor(seconds / 86400), "d"];
    const text = `${amount} ${unit} ago`;
    if (time.textContent !== text) time.textContent = text;
    time.title = time.dateTime;
  }
}
ages();
setInterval(ages, 5000);
document.addEventListener("htmx:afterSettle", () => { ages(); count(); });

// Whether what is shown is live.
const connection = document.getElementById("connection");
function tell(word) {
  connection.hidden = false;
  connection.classList.toggle("off", word !== "live");
  if (connection.textContent !== word) connection.textContent = word;
}
function live() {
  tell(document.querySelector("#stale p") ? "old" : "live");
}
document.addEventListener("htmx:sseOpen", live);
document.addEventListener("htmx:sseMessage", live);
document.addEventListener("htmx:oobAfterSwap", (event) => {
  if (event.target.id === "stale") live();
});
document.addEventListener("htmx:sseError", () => tell(document.hidden ? "paused" : "reconnecting"));

// What asks anew by itself keeps what it shows while nobody can answer, be it the cluster or a proxy. What has not shown
// anything yet says why.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.target !== event.detail.requestConfig.elt || event.detail.xhr.status < 500) return;
  event.detail.shouldSwap = event.target.querySelector(".loading") !== null;
});

// A page that nobody sees has no stream. The extension opens one anew that is closed, once it is told of an error.
let streams = [];
let paused = [];
function pause() {
  for (const stream of streams) stream.close();
  paused.push(...streams.splice(0));
  tell("paused");
}
htmx.createEventSource = (url) => {
  const stream = new EventSource(url, { withCredentials: true });
  streams = [...streams.filter((each) => each.readyState !== EventSource.CLOSED), stream];
  if (document.hidden) pause();
  return stream;
};
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    streams = streams.filter((each) => each.readyState !== EventSource.CLOSED);
    if (streams.length) pause();
  } else {
    for (const stream of paused.splice(0)) stream.dispatchEvent(new Event("error"));
  }
});
count();
