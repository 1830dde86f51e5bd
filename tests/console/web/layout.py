"""Scripts that check a page's layout: broken words, overlapping texts, overflowing content and positions."""

from __future__ import annotations

from typing import Any

from tests.console.web.site import Browser

MAX_UNBROKEN_CHARACTERS = 14
"""Maximum length of words that must not be broken; longer words are pod names or ids, which may be broken."""
MAX_OVERLAP_PIXELS = 2
"""Pixels by which two text boxes may overlap, because boxes are higher than the visible characters."""

TEXT_FUNCTIONS_SCRIPT = """
const ancestors = element => element ? [element, ...ancestors(element.parentElement)] : [];
const invisibleTags = ['TITLE', 'OPTION', 'SCRIPT'];
const hides = element => getComputedStyle(element).clipPath !== 'none'
  || invisibleTags.includes(element.tagName.toUpperCase());
const isVisible = element => element.checkVisibility({ opacityProperty: true, visibilityProperty: true })
  && !ancestors(element).some(hides);
const clip = (box, element) => ancestors(element)
  .filter(ancestor => getComputedStyle(ancestor).overflow !== 'visible')
  .map(ancestor => ancestor.getBoundingClientRect())
  .reduce((visible, edge) => ({
    left: Math.max(visible.left, edge.left), right: Math.min(visible.right, edge.right),
    top: Math.max(visible.top, edge.top), bottom: Math.min(visible.bottom, edge.bottom),
  }), box);
const findTextNodes = root => {
  const found = [], walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.textContent.trim() && isVisible(node.parentElement)) found.push(node);
  }
  return found;
};
const getRects = (node, from, to) => {
  const range = document.createRange();
  range.setStart(node, from);
  range.setEnd(node, to);
  return [...range.getClientRects()].filter(rect => rect.width > 0 && rect.height > 0);
};
"""

BROKEN_WORDS_SCRIPT = (
    TEXT_FUNCTIONS_SCRIPT
    + """
const broken = [];
for (const node of findTextNodes(document.querySelector(arguments[0]))) {
  for (const word of node.textContent.matchAll(/[A-Za-z0-9]+/g)) {
    if (word[0].length > arguments[1]) continue;
    const rects = getRects(node, word.index, word.index + word[0].length);
    const tops = new Set(rects.map(rect => Math.round(rect.top)));
    if (tops.size > 1) broken.push(word[0]);
  }
}
return broken;
"""
)

OVERLAPPING_TEXTS_SCRIPT = (
    TEXT_FUNCTIONS_SCRIPT
    + """
const textBoxes = findTextNodes(document.querySelector(arguments[0]))
  .flatMap(node => getRects(node, 0, node.length)
    .map(box => ({ node, box: clip(box, node.parentElement), text: node.textContent.trim() })));
const found = [];
textBoxes.forEach((first, index) => {
  for (const second of textBoxes.slice(index + 1)) {
    if (first.node === second.node) continue;
    const width = Math.min(first.box.right, second.box.right) - Math.max(first.box.left, second.box.left);
    const height = Math.min(first.box.bottom, second.box.bottom) - Math.max(first.box.top, second.box.top);
    if (width > arguments[1] && height > arguments[1]) found.push(`${first.text} | ${second.text}`);
  }
});
return found;
"""
)

OVERFLOWING_TEXTS_SCRIPT = (
    TEXT_FUNCTIONS_SCRIPT
    + """
return [...document.querySelectorAll(arguments[0])]
  .filter(element => element.clientWidth && isVisible(element) && element.scrollWidth > element.clientWidth + 1)
  .map(element => element.innerText);
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
    """Return the words in the element that are broken across lines."""
    words: list[str] = browser.run_script(BROKEN_WORDS_SCRIPT, selector, MAX_UNBROKEN_CHARACTERS)
    return words


def find_overlapping_texts(browser: Browser, selector: str) -> list[str]:
    """Return the pairs of overlapping texts in the element."""
    texts: list[str] = browser.run_script(OVERLAPPING_TEXTS_SCRIPT, selector, MAX_OVERLAP_PIXELS)
    return texts


def find_overflowing_texts(browser: Browser, selector: str) -> list[str]:
    """Return the texts of the elements whose content is wider than the element itself."""
    texts: list[str] = browser.run_script(OVERFLOWING_TEXTS_SCRIPT, selector)
    return texts


def measure_box(browser: Browser, selector: str, *, scroll: bool = True) -> dict[str, Any]:
    """Scroll to the element, and return its position and whether a click at its center hits it.

    If `scroll` is false, the page is not scrolled.
    """
    element = browser.wait_for_element(selector)
    if scroll:
        browser.run_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    box: dict[str, Any] = browser.run_script(BOX_SCRIPT, element)
    return box
