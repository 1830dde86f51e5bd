"""Measures the layout of a page with scripts: broken words, overlapping texts, overflowing boxes and menus."""

from __future__ import annotations

from typing import Any

from tests.console.web.site import Browser

MAX_UNBROKEN_CHARACTERS = 14
"""Maximum characters of a word that must not be broken; longer words are pod names or ids, which may be broken."""
MAX_OVERLAP_PIXELS = 2
"""Pixels by which two text boxes may overlap, since a font's box is higher than its visible characters."""

TEXT_FUNCTIONS_SCRIPT = """
const ancestors = element => element ? [element, ...ancestors(element.parentElement)] : [];
const unseen = ['TITLE', 'OPTION', 'SCRIPT'];
const hides = each => getComputedStyle(each).clipPath !== 'none' || unseen.includes(each.tagName.toUpperCase());
const shown = element => element.checkVisibility({ opacityProperty: true, visibilityProperty: true })
  && !ancestors(element).some(hides);
const clipped = (box, element) => ancestors(element).filter(each => getComputedStyle(each).overflow !== 'visible')
  .map(each => each.getBoundingClientRect())
  .reduce((left, edge) => ({
    left: Math.max(left.left, edge.left), right: Math.min(left.right, edge.right),
    top: Math.max(left.top, edge.top), bottom: Math.min(left.bottom, edge.bottom),
  }), box);
const texts = root => {
  const found = [], walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.textContent.trim() && shown(node.parentElement)) found.push(node);
  }
  return found;
};
const rects = (node, from, to) => {
  const range = document.createRange();
  range.setStart(node, from);
  range.setEnd(node, to);
  return [...range.getClientRects()].filter(each => each.width > 0 && each.height > 0);
};
"""

BROKEN_WORDS_SCRIPT = (
    TEXT_FUNCTIONS_SCRIPT
    + """
const broken = [];
for (const node of texts(document.querySelector(arguments[0]))) {
  for (const word of node.textContent.matchAll(/[A-Za-z0-9]+/g)) {
    if (word[0].length > arguments[1]) continue;
    const tops = new Set(rects(node, word.index, word.index + word[0].length).map(each => Math.round(each.top)));
    if (tops.size > 1) broken.push(word[0]);
  }
}
return broken;
"""
)

OVERLAPPING_TEXTS_SCRIPT = (
    TEXT_FUNCTIONS_SCRIPT
    + """
const all = texts(document.querySelector(arguments[0]))
  .flatMap(node => rects(node, 0, node.length)
    .map(box => ({ node, box: clipped(box, node.parentElement), text: node.textContent.trim() })));
const found = [];
all.forEach((one, index) => {
  for (const other of all.slice(index + 1)) {
    if (one.node === other.node) continue;
    const wide = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
    const high = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
    if (wide > arguments[1] && high > arguments[1]) found.push(`${one.text} | ${other.text}`);
  }
});
return found;
"""
)

OVERFLOWING_TEXTS_SCRIPT = (
    TEXT_FUNCTIONS_SCRIPT
    + """
return [...document.querySelectorAll(arguments[0])]
  .filter(each => each.clientWidth && shown(each) && each.scrollWidth > each.clientWidth + 1)
  .map(each => each.innerText);
"""
)

BOX_SCRIPT = """
const box = arguments[0].getBoundingClientRect();
const hit = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
return { width: box.width, height: box.height, left: box.left, right: box.right, top: box.top, bottom: box.bottom,
         onTop: arguments[0].contains(hit),
         inside: box.left >= 0 && box.right <= innerWidth };
"""


def find_broken_words(browser: Browser, selector: str) -> list[str]:
    """Return the words in the element that are broken over several lines."""
    words: list[str] = browser.run_script(BROKEN_WORDS_SCRIPT, selector, MAX_UNBROKEN_CHARACTERS)
    return words


def find_overlapping_texts(browser: Browser, selector: str) -> list[str]:
    """Return the pairs of texts in the element that overlap."""
    texts: list[str] = browser.run_script(OVERLAPPING_TEXTS_SCRIPT, selector, MAX_OVERLAP_PIXELS)
    return texts


def find_overflowing_texts(browser: Browser, selector: str) -> list[str]:
    """Return the texts of the elements whose content is wider than the element."""
    texts: list[str] = browser.run_script(OVERFLOWING_TEXTS_SCRIPT, selector)
    return texts


def measure_box(browser: Browser, selector: str, *, scroll: bool = True) -> dict[str, Any]:
    """Return the element's position, and whether a click at its center hits it; by default, scroll to it first."""
    element = browser.wait_for_element(selector)
    if scroll:
        browser.run_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    box: dict[str, Any] = browser.run_script(BOX_SCRIPT, element)
    return box
