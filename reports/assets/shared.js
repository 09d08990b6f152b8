// -- Characters -----------------------------------------------------------------------------------

const hidden = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}\u00a0]/u; // invisible, or changes the direction of the text
const joiners = "\u200c\u200d"; // parts of words and emoji
const code = (letter) => (letter < "\u0080" ? hex(letter).slice(4) : hex(letter));

/** A character in the text: [class, text to show]. */
function mark(letter) {
  if (letter === "\n") return ["line", letter];
  if (letter === "\t") return ["tab", letter];
  if (hidden.test(letter) && !joiners.includes(letter)) return ["code", code(letter)];
  return ["", letter];
}

const bits = (thousandths) => (thousandths === 65535 ? "65.5 bits or more" : `${(thousandths / 1000).toFixed(2)} bits`);

// -- Surprisal ------------------------------------------------------------------------------------

const MAX_STEP = 20; // last step of the surprisal scale; a step is half a bit

/** The scale step of a surprisal in thousandths of a bit. */
const surprise = (thousandths) => Math.min(MAX_STEP, Math.floor(thousandths / 500));

/** The CSS class of a scale step; steps below 0 are those of A. */
const shade = (step) => (step < 0 ? `a${-step}` : `s${step}`);

/** Make the CSS classes of a scale and its legend: the title of each step, the name, the labels of both ends. */
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

/** Show the surprisal scale. */
function surprisal() {
  scale(0, MAX_STEP, (s) => `${s / 2} bits${s === MAX_STEP ? " or more" : ` to ${s / 2 + 0.5}`}`, "surprisal", ["0", "10 bits"]);
}

/** A bar chart of [name, probability] rows; `own` is highlighted. */
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

/** The surprisal of a character and the likely ones: [name, probability] rows, null for the first of a text. */
function cost(own, thousandths, likely) {
  const found = likely?.find(([name]) => name === own);
  const chance = found ? found[1] : 2 ** (-thousandths / 1000);
  const said = make("p", "", `${bits(thousandths)}, ${percent(chance)}`);
  if (!likely) return [said, make("p", "soft", "Nothing comes before the first character: every one was as likely.")];
  return [said, bars(found ? likely : [...likely, [own, chance]], own)];
}

/** Place a card below or above a box. */
function beside(card, box) {
  const own = card.getBoundingClientRect(), high = innerHeight - own.height - 8;
  const under = box.bottom + 12 <= high ? box.bottom + 12 : Math.max(8, box.top - own.height - 12);
  card.style.left = `${Math.max(8, Math.min(box.left - 24, document.documentElement.clientWidth - own.width - 8))}px`;
  card.style.top = `${under}px`;
}
