"use strict";
const element = (id) => document.getElementById(id);
const make = (tag, name, text) => Object.assign(document.createElement(tag), { className: name ?? "", textContent: text ?? "" });

// -- Characters as people see them ---------------------------------------------------------------

const hidden = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}\u00a0]/u; // cannot be seen, or turns the text around it
const joiners = "\u200c\u200d"; // words and emoji fall apart without them
const hex = (letter) => "U+" + letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
const code = (letter) => (letter < "\u0080" ? hex(letter).slice(4) : hex(letter));

/** A character in the text: [its class, what stands there]. */
function mark(letter) {
  if (letter === "\n") return ["line", letter];
  if (letter === "\t") return ["tab", letter];
  if (hidden.test(letter) && !joiners.includes(letter)) return ["code", code(letter)];
  return ["", letter];
}

/** A character on its own. */
function called(letter) {
  const names = { "\n": "newline", "\t": "tab", " ": "space", "\u00a0": "no-break space" };
  if (names[letter]) return names[letter];
  if (/^\\x..$/.test(letter)) return "byte " + letter.slice(2).toUpperCase();
  if (hidden.test(letter)) return hex(letter);
  return /^\p{M}/u.test(letter) ? "\u25cc" + letter : letter;
}

const bits = (thousandths) => (thousandths === 65535 ? "65.5 bits or more" : `${(thousandths / 1000).toFixed(2)} bits`);

/** A probability given as a share. */
function percent(share) {
  const value = share * 100;
  if (value >= 0.1) return value.toFixed(1) + " %";
  return value >= 0.001 ? value.toPrecision(1) + " %" : "< 0.001 %";
}

// -- What a character costs ----------------------------------------------------------------------

const MOST = 20; // steps of the scale of surprisal, each half a bit

/** The step of so many thousandths of a bit. */
const surprise = (thousandths) => Math.min(MOST, Math.floor(thousandths / 500));

/** The class of a step of the scale; those below 0 have classes of their own. */
const shade = (step) => (step < 0 ? `a${-step}` : `s${step}`);

/** Make the classes of a scale and show it, with what each step means and what stands at its ends. */
function scale(least, most, title, name, ends) {
  const swatches = element("legend").firstElementChild, sheet = document.styleSheets[0];
  for (let s = least; s <= most; s++) {
    const hue = least < 0 ? `; --h: ${s < 0 ? 255 : 55}` : "";
    sheet.insertRule(`:is(#text, #legend, #spark) .${shade(s)} { --t: ${Math.abs(s) / most}${hue} }`, sheet.cssRules.length);
    swatches.append(Object.assign(make("i", shade(s)), { title: title(s) }));
  }
  swatches.title = name;
  swatches.before(make("span", "", ends[0]));
  swatches.after(make("span", "", ends[1]));
}

/** The scale of surprisal. */
function surprisal() {
  scale(0, MOST, (s) => `${s / 2} bits${s === MOST ? " or more" : ` to ${s / 2 + 0.5}`}`, "surprisal", ["0", "10 bits"]);
}

/** Rows of [name, share], with bars as long as the shares; `own` stands out. */
function bars(rows, own) {
  const list = make("ol", "bars");
  for (const [name, share] of rows) {
    const item = make("li", name === own ? "own" : ""), track = make("div"), bar = make("i");
    bar.style.width = `${share * 100}%`;
    track.append(bar);
    item.append(make("span", "", called(name)), track, make("em", "", percent(share)));
    list.append(item);
  }
  return list;
}

/** What a character cost, and what was likely in its place: rows of [name, share], null for the first of a text. */
function cost(own, thousandths, likely) {
  const found = likely?.find(([name]) => name === own);
  const chance = found ? found[1] : 2 ** (-thousandths / 1000);
  const said = make("p", "", `${bits(thousandths)}, ${percent(chance)}`);
  if (!likely) return [said, make("p", "soft", "Nothing comes before the first character: every one was as likely.")];
  return [said, bars(found ? likely : [...likely, [own, chance]], own)];
}

/** Put a card below or above a box of the screen. */
function beside(card, box) {
  const own = card.getBoundingClientRect(), high = innerHeight - own.height - 8;
  const under = box.bottom + 12 <= high ? box.bottom + 12 : Math.max(8, box.top - own.height - 12);
  card.style.left = `${Math.max(8, Math.min(box.left - 24, document.documentElement.clientWidth - own.width - 8))}px`;
  card.style.top = `${under}px`;
}
