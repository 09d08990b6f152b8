"use strict";

/* Functions for the scripts of all pages: find and create elements, name characters, shade attention weights. */

const element = (id) => document.getElementById(id);
const make = (tag, name, text) => Object.assign(document.createElement(tag), { className: name ?? "", textContent: text ?? "" });
const hex = (letter) => "U+" + letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");

/** Return the name of a character, which may be invisible, or of a byte such as \xff. */
function called(letter) {
  const names = { "\n": "newline", " ": "space", "\t": "tab", "\r": "return", "\u00a0": "no-break space" };
  if (/^\\x..$/.test(letter)) return "byte " + letter.slice(2).toUpperCase();
  if (/^[\p{C}\p{Z}]/u.test(letter)) return names[letter] ?? hex(letter);
  return /^\p{M}/u.test(letter) ? "\u25cc" + letter : letter;
}

/** Format a probability in percent. */
const percent = (share) => (0 < share && share < 5e-5 ? "<0.01 %" : `${(100 * share).toFixed(share < 0.0995 ? 2 : 1)} %`);

/** Shade each character's element by its attention weight, the largest weight darkest.
    Return the largest weight and a sentence about it. `at` is the index of the query character, and `name` returns the
    name of an element's character. */
function shadeAttention(elements, weights, at, name) {
  const most = weights.reduce((a, b) => Math.max(a, b)), top = weights.indexOf(most), back = at - top;
  elements.forEach((each, i) => {
    const share = (weights[i] / most).toFixed(2);
    if (each.share === share) return; // true for most, which have no shade: setting a style is slow
    each.share = share;
    each.style.setProperty("--share", share);
  });
  const where = back ? `, ${back} back` : ", itself";
  return [most, `${name(elements[at])} looks most at ${name(elements[top])}${where}: ${percent(most)}`];
}

