/* Functions that the pages of runs and scores share. base/page.js comes first: it defines `element`, `make`, `hex`,
   `called`, `percent` and `shadeAttention`. */

const clamp = (value, least, most) => Math.max(least, Math.min(most, value));

/** Return a new SVG element. */
function makeSvg(tag, attributes, text = "") {
  const node = Object.assign(document.createElementNS("http://www.w3.org/2000/svg", tag), { textContent: text });
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/** Return a table row; `tag` is td or th, and each cell is a string or an element. */
function tableRow(tag, ...cells) {
  const row = make("tr"), nodes = cells.map(() => make(tag));
  nodes.forEach((node, i) => node.append(cells[i]));
  row.append(...nodes);
  return row;
}

/** On an arrow key, call `move(right, down)` with -1, 0 or 1 each. The key scrolls only if `move` returns false. */
function onArrow(node, move) {
  const directions = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  node.addEventListener("keydown", (event) => {
    const direction = !event.ctrlKey && !event.metaKey && !event.altKey && directions[event.key];
    if (direction && move(...direction) !== false) event.preventDefault();
  });
}

// -- Characters -----------------------------------------------------------------------------------

const unreadable = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}\u00a0]/u; // invisible, or changes the direction of the text
const joiners = "\u200c\u200d"; // invisible too, but without them some words and emoji would look different
const code = (letter) => (letter < "\u0080" ? hex(letter).slice(4) : hex(letter));

/** Return the CSS class and the text that show a character: [class, text]. */
function mark(letter) {
  if (letter === "\n") return ["line", letter];
  if (letter === "\t") return ["tab", letter];
  if (unreadable.test(letter) && !joiners.includes(letter)) return ["code", code(letter)];
  return ["", letter];
}

/** Format a surprisal in thousandths of a nat; 65535 is the largest that a page stores. */
const nats = (thousandths) => `${(thousandths / 1000).toFixed(2)} nats${thousandths === 65535 ? " or more" : ""}`;
const bits = (thousandths) => `${(thousandths / 1000 / Math.LN2).toFixed(2)} bits`;

// -- The colour scale of surprisal ----------------------------------------------------------------

const MAX_STEP = 20, STEP = 350; // last step of the scale; width of a step in thousandths of a nat

/** Return the scale step of a surprisal in thousandths of a nat. */
const surprisalStep = (thousandths) => Math.min(MAX_STEP, Math.floor(thousandths / STEP));

/** Return the CSS class of a scale step; steps below 0 occur when two models are compared. */
const shade = (step) => (step < 0 ? `a${-step}` : `s${step}`);

/** Create the CSS classes and the legend of the scale steps from `least` to `most`.
    `title` returns the tooltip of a step, `name` is the tooltip of the legend, and `ends` are the labels of its two ends. */
function makeScale(least, most, title, name, ends) {
  const swatches = element("legend").firstElementChild, sheet = document.styleSheets[0];
  for (let step = least; step <= most; step++) {
    const hue = least < 0 ? `; --hue: ${step < 0 ? 255 : 55}` : "";
    sheet.insertRule(`:is(#text, #legend, #spark) .${shade(step)} { --t: ${Math.abs(step) / most}${hue} }`, sheet.cssRules.length);
    swatches.append(Object.assign(make("i", shade(step)), { title: title(step) }));
  }
  swatches.title = name;
  swatches.before(make("span", "", ends[0]));
  swatches.after(make("span", "", ends[1]));
}

function makeSurprisalScale() {
  const title = (step) => nats(step * STEP) + (step === MAX_STEP ? " or more" : ` to ${nats((step + 1) * STEP)}`);
  makeScale(0, MAX_STEP, title, "surprisal", ["surprisal: 0", nats(MAX_STEP * STEP)]);
}

// -- The card of a character ----------------------------------------------------------------------

/** Return a bar chart of [character, probability] rows; the row of the character `actual` is highlighted. */
function bars(rows, actual) {
  const list = make("ol", "bars");
  for (const [letter, probability] of rows) {
    const item = make("li", letter === actual ? "own" : ""), track = make("div"), bar = make("i");
    bar.style.width = `${probability * 100}%`;
    track.append(bar);
    item.append(make("span", "", called(letter)), track, make("em", "", percent(probability)));
    list.append(item);
  }
  return list;
}

/** Return the card's header: the name of a character, and facts about its position. */
function cardHeader(letter, ...facts) {
  const header = make("header"), known = [hex(letter), ...facts].filter((fact) => fact && fact !== called(letter));
  header.append(make("b", "", called(letter)), make("span", "soft", known.join(", ")));
  return header;
}

/** Return the card's body: the surprisal of the character `actual` and its probability among the top-k characters.
    `top` are [character, probability] rows, and null for the first character of a text. */
function cardBody(actual, thousandths, top) {
  const found = top?.find(([letter]) => letter === actual);
  const probability = found ? found[1] : Math.exp(-thousandths / 1000);
  const surprisal = make("p", "", `${nats(thousandths)} (${bits(thousandths)}), ${percent(probability)}`);
  if (!top) return [surprisal, make("p", "soft", "No text comes before the first character, so all characters are equally likely.")];
  return [surprisal, bars(found ? top : [...top, [actual, probability]], actual)];
}

/** Move the card below a rectangle of the screen, or above it if there is no room. */
function placeCard(card, box) {
  const { width, height } = card.getBoundingClientRect(), below = box.bottom + 12;
  const fits = below <= innerHeight - height - 8;
  card.style.left = `${Math.max(8, Math.min(box.left - 24, document.documentElement.clientWidth - width - 8))}px`;
  card.style.top = `${fits ? below : Math.max(8, box.top - height - 12)}px`;
}

/** Move the frame around the selected character to a rectangle of the screen. */
function placeCursor(box) {
  const page = element("text").getBoundingClientRect();
  Object.assign(element("cursor").style, {
    left: `${box.left - page.left}px`, top: `${box.top - page.top}px`,
    width: `${Math.max(2, box.width)}px`, height: `${box.height}px`,
  });
}
