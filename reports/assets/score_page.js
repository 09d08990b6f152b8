/** Return the mean of the values at indices from `from` to `to` - 1; `sums` are their cumulative sums. */
const mean = (sums, from, to) => (sums[to] - sums[from]) / (to - from);

/** Format a difference of two surprisals, with its sign. */
const signedNats = (thousandths) => (thousandths < 0 ? "\u2212" : "+") + nats(Math.abs(thousandths));

/** Return the first index at which `before` is false, or `length`; `before` must be false at all later indices, too. */
function firstIndex(length, before) {
  let low = 0, high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (before(middle)) low = middle + 1; else high = middle;
  }
  return low;
}

/** Return how many of the sorted numbers are below a limit. */
const countBelow = (numbers, limit) => firstIndex(numbers.length, (i) => numbers[i] < limit);

/** Read a column of the data: little-endian numbers of an array type, deflated, in base64. */
async function readColumn(id, ArrayType) {
  const packed = atob(element(id).textContent), bytes = new Uint8Array(packed.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = packed.charCodeAt(i);
  element(id).remove();
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new ArrayType(await new Response(stream).arrayBuffer());
}

async function main() {
  const about = JSON.parse(element("data").textContent);
  const letters = Array.from(new TextDecoder("utf-8", { ignoreBOM: true }).decode(await readColumn("letters", Uint8Array)));
  const models = about.models;
  for (const [m, model] of models.entries()) {
    model.nats = await readColumn(`nats${m}`, Uint16Array); // in thousandths
    model.likely = await readColumn(`likely${m}`, model.vocabulary.length > 256 ? Uint16Array : Uint8Array);
    model.chances = await readColumn(`chances${m}`, Uint16Array); // in thousandths
  }
  const [a, b] = models; // B only with --compare
  const count = letters.length;
  // The value that a colour stands for, in thousandths of a nat: the surprisal of A, or B minus A.
  const value = b ? (i) => b.nats[i] - a.nats[i] : (i) => a.nats[i];
  const format = b ? signedNats : nats;
  const sums = new Float64Array(count + 1);
  for (let i = 0; i < count; i++) sums[i + 1] = sums[i] + value(i);
  const newlines = [];
  letters.forEach((letter, i) => { if (letter === "\n") newlines.push(i); });

  // -- Colours: one hue for a surprisal, two for a difference --------------------------------------
  const least = b ? -10 : 0, most = b ? 10 : MAX_STEP;
  const step = b ? (i) => clamp(Math.round(value(i) / STEP), least, most) : (i) => surprisalStep(value(i));
  if (b) makeScale(least, most, (s) => signedNats(s * STEP), "surprisal of B minus that of A", ["A 3.5 nats higher", "B 3.5 nats higher"]);
  else makeSurprisalScale();

  // -- The figures -------------------------------------------------------------------------------
  if (b) element("hint").textContent = "The stronger the colour of a character, the more the two models differ in how much it surprised them. Point at one for details.";
  element("what").textContent = `${about.characters.toLocaleString("en")} character${about.characters === 1 ? "" : "s"}`;
  if (about.trained) element("what").textContent += "; a model was trained on this text, except for its held-out part";
  const table = element("figures");
  table.append(tableRow("th", "", "nats per character", "perplexity", "bits per character", "bits per byte"));
  for (const [m, model] of models.entries()) {
    const row = tableRow("td", (b ? "AB"[m] + "  " : "") + model.name, ...model.figures);
    row.firstChild.append(make("small", "soft", model.mode));
    table.append(row);
  }
  if (about.difference) table.append(tableRow("td", "B \u2212 A", ...about.difference));

  // -- The text in blocks of lines; only blocks near the screen are split into coloured spans ------
  const text = element("text"), cursor = element("cursor"), card = element("card");
  const begins = [], blocks = [], painted = new Map();
  const lineHeight = parseFloat(getComputedStyle(text).lineHeight);
  const lettersPerRow = Math.floor(text.clientWidth / 9); // a letter is about 9 pixels wide
  for (let begin = 0; begin < count; ) {
    let end = Math.min(count, begin + 2000);
    if (end < count) { // end a block after its last newline, or else after a space
      const afterLine = newlines[countBelow(newlines, end) - 1] + 1;
      const space = letters.slice(begin + 1000, end).lastIndexOf(" ");
      if (afterLine > begin) end = afterLine; else if (space >= 0) end = begin + 1000 + space + 1;
    }
    begins.push(begin);
    const block = make("p", "", letters.slice(begin, end).map((letter) => mark(letter)[1]).join(""));
    const rows = block.textContent.trimEnd().split("\n").map((line) => Math.ceil((line.length + 1) / lettersPerRow));
    const height = rows.reduce((sum, number) => sum + number) * lineHeight; // an estimate until the block is on the screen
    block.style.containIntrinsicHeight = `auto ${height}px`;
    blocks.push(block);
    begin = end;
  }
  text.append(...blocks);
  const blockOf = (i) => countBelow(begins, i + 1) - 1;
  const numbers = new Map(blocks.map((block, k) => [block, k]));
  const isMarked = (span) => span.className.includes(" "); // such a span contains a single character: newline, tab or code

  /** Split block k into coloured spans; return them and the index of the first character of each. */
  function paint(k) {
    if (painted.has(k)) return painted.get(k);
    const end = begins[k + 1] ?? count, starts = [], spans = [];
    for (let i = begins[k]; i < end; ) {
      const [kind, shown] = mark(letters[i]), s = step(i);
      let run = shown, next = i + 1;
      if (!kind) while (next < end && next < i + 64 && step(next) === s && !mark(letters[next])[0]) run += letters[next++];
      spans.push(make("span", kind ? `${kind} ${shade(s)}` : shade(s), run));
      starts.push(i);
      i = next;
    }
    blocks[k].replaceChildren(...spans);
    painted.set(k, { starts, spans });
    return painted.get(k);
  }

  /** Turn block k back into plain text, which is cheaper, unless it contains the selected character. */
  function unpaint(k) {
    if (k !== blockOf(selected) && painted.delete(k)) blocks[k].textContent = blocks[k].textContent;
  }

  let selected = -1;
  const watcher = new IntersectionObserver(
    (entries) => entries.forEach((entry) => (entry.isIntersecting ? paint : unpaint)(numbers.get(entry.target))),
    { rootMargin: "1500px 0px" },
  );
  for (const block of blocks) watcher.observe(block);
  addEventListener("beforeprint", () => blocks.forEach((_, k) => paint(k)));

  /** Return the rectangles of a character on the screen. */
  function boxes(i) {
    const { starts, spans } = paint(blockOf(i));
    const s = countBelow(starts, i + 1) - 1;
    if (isMarked(spans[s])) return [...spans[s].getClientRects()];
    const from = letters.slice(starts[s], i).join("").length, range = document.createRange();
    range.setStart(spans[s].firstChild, from);
    range.setEnd(spans[s].firstChild, from + letters[i].length);
    return [...range.getClientRects()];
  }

  /** Return the index of the character at a point of the screen; -1 if there is none. */
  function letterAt(x, y) {
    const span = document.elementFromPoint(x, y)?.closest("#text p span");
    if (!span) return -1;
    const { starts, spans } = painted.get(numbers.get(span.parentNode)), s = spans.indexOf(span);
    if (isMarked(span)) return starts[s];
    const end = starts[s] + Array.from(span.textContent).length;
    // A span has padding above and below the rectangles of its characters: allow 4 pixels.
    for (let i = starts[s]; i < end; i++)
      for (const box of boxes(i)) if (x >= box.left && x < box.right && y >= box.top - 4 && y <= box.bottom + 4) return i;
    return -1;
  }

  // -- The card of the selected character ----------------------------------------------------------
  /** Return the card's section for a model. */
  function modelSection(model, m, i) {
    const section = make("section");
    if (b) section.append(make("h2", "", "AB"[m] + "  " + model.name));
    const k = model.likely.length / count, rows = [];
    for (let j = i * k; j < (i + 1) * k; j++)
      if (model.chances[j] || j === i * k) rows.push([model.vocabulary[model.likely[j]], model.chances[j] / 1000]);
    section.append(...cardBody(letters[i], model.nats[i], i || model.chances[0] ? rows : null));
    return section;
  }

  function select(i) {
    if (i === selected && !card.hidden) return;
    selected = i;
    const body = make("div");
    body.append(...models.map((model, m) => modelSection(model, m, i)));
    card.className = b ? "two" : "";
    card.replaceChildren(cardHeader(letters[i], `line ${countBelow(newlines, i) + 1}`, `position ${i}`, b && signedNats(value(i))), body);
    card.hidden = cursor.hidden = false;
    place();
  }

  /** Move the card to the selected character; hide it while the character is off the screen. */
  function place() {
    if (selected < 0 || card.hidden) return;
    const offScreen = ({ top, bottom }) => bottom < 0 || top > innerHeight;
    // Test the block first: to paint it only for its rectangles would be slow.
    const [box] = offScreen(blocks[blockOf(selected)].getBoundingClientRect()) ? [] : boxes(selected);
    card.style.visibility = !box || offScreen(box) ? "hidden" : "";
    if (!box) return;
    placeCursor(box);
    placeCard(card, box);
  }

  function close() {
    card.hidden = cursor.hidden = true;
  }

  const scrollToBox = (box) => scrollBy(0, box.top - innerHeight * 0.45);

  /** Scroll to a character and select it, until the pointer or a key selects another. */
  function jump(i) {
    pinned = true;
    const k = blockOf(i);
    paint(k);
    blocks[k].scrollIntoView();
    select(i);
    // Blocks that come near the screen get their real heights and move the blocks below, so scroll again for some frames.
    let frames = 8;
    const settle = () => {
      const [box] = boxes(i);
      if (box) scrollToBox(box);
      if (frames--) requestAnimationFrame(settle);
    };
    settle();
    text.focus({ preventScroll: true });
  }

  let pinned = false; // after a click, a tap or a key, moving the pointer selects nothing
  text.onpointermove = (event) => {
    if (event.pointerType !== "mouse" || pinned) return;
    const i = letterAt(event.clientX, event.clientY);
    if (i >= 0) select(i); else close();
  };
  text.onpointerleave = () => { if (!pinned) close(); };
  text.onclick = (event) => {
    const i = letterAt(event.clientX, event.clientY);
    pinned = i >= 0 && !(pinned && i === selected);
    if (i < 0 || (!pinned && event.pointerType === "touch")) close(); else select(i);
  };
  text.onkeydown = (event) => { if (event.key === "Escape") { pinned = false; close(); } };
  onArrow(text, (right, down) => {
    const from = card.hidden ? -1 : selected;
    let to = from + right;
    if (down) {
      const [start] = from >= 0 ? boxes(from) : [], line = countBelow(newlines, Math.max(0, from));
      to = start ? letterAt(start.left + 1, (start.top + start.bottom) / 2 + down * lineHeight) : -1;
      // No character is straight below or above: choose the beginning of the next line, or the end of the previous one.
      if (to < 0) to = down > 0 ? (newlines[line] ?? count) + 1 : newlines[line - 1] ?? 0;
    }
    to = clamp(to, 0, count - 1);
    pinned = true;
    const [box] = boxes(to);
    if (box && (box.top < 120 || box.bottom > innerHeight - 60)) scrollToBox(box);
    select(to);
  });
  addEventListener("scroll", () => requestAnimationFrame(() => { place(); shadeVisible(); }), { passive: true });

  // -- The overview --------------------------------------------------------------------------------
  const spark = element("spark"), columns = Math.min(600, count);
  const heights = Array.from({ length: columns }, (_, x) => mean(sums, Math.floor((x * count) / columns), Math.floor(((x + 1) * count) / columns)));
  const top = Math.max(0, ...heights) || (b ? 0 : 1), bottom = Math.min(0, ...heights), range = top - bottom || 1;
  const y = (height) => (2 + (96 * (top - height)) / range).toFixed(1), x = (i) => ((i * 600) / columns).toFixed(1);
  /** Draw the part of the curve above zero (`limit` is Math.max) or below (Math.min). */
  const area = (name, limit) => {
    const d = `M0 ${y(0)}` + heights.map((height, i) => `V${y(limit(height, 0))}H${x(i + 1)}`).join("") + `V${y(0)}Z`;
    spark.querySelector("line").before(makeSvg("path", name ? { d, class: name } : { d }));
  };
  area(b ? shade(most) : "", Math.max);
  if (b) area(shade(least), Math.min);
  for (const end of ["y1", "y2"]) spark.querySelector("line").setAttribute(end, y(0));
  spark.ariaLabel = b ? "Difference of the surprisals along the text" : "Surprisal along the text";
  element("along").textContent = `${spark.ariaLabel}: click to go there`;
  spark.addEventListener("click", (event) => {
    const box = spark.getBoundingClientRect();
    jump(clamp(Math.floor(((event.clientX - box.left) / box.width) * count), 0, count - 1));
  });

  /** Shade the part of the overview that is on the screen. */
  function shadeVisible() {
    const boxOf = (k) => blocks[k].getBoundingClientRect();
    const letterAtHeight = (edge) => {
      const k = Math.min(blocks.length - 1, firstIndex(blocks.length, (block) => boxOf(block).bottom < edge));
      const box = boxOf(k), end = begins[k + 1] ?? count;
      return begins[k] + clamp((edge - box.top) / (box.height || 1), 0, 1) * (end - begins[k]);
    };
    const [from, to] = [element("bar").offsetHeight, innerHeight].map((edge) => (letterAtHeight(edge) * 600) / count);
    spark.querySelector("rect").setAttribute("x", from);
    spark.querySelector("rect").setAttribute("width", Math.max(2, to - from));
  }
  new ResizeObserver(() => { place(); shadeVisible(); }).observe(text);

  // -- Lists of words and lines --------------------------------------------------------------------
  const size = b ? Math.abs : (number) => number; // a list is sorted by size

  /** Return the largest `length` pieces of the text, [from, to, number, shown text]; of pieces with equal text, only the largest. */
  function largest(pieces, length) {
    let best = [];
    const isLarger = (one, other) => size(one[2]) > size(other[2]);
    for (const piece of pieces) {
      const [from, to] = piece;
      if (best.length === length && !isLarger(piece, best[length - 1])) continue;
      piece.push(letters.slice(from, Math.min(to, from + 200)).map((letter) => mark(letter)[1]).join(""));
      const same = best.find((other) => other[3] === piece[3]);
      if (same && !isLarger(piece, same)) continue;
      best = [...best.filter((other) => other !== same), piece].sort((one, other) => size(other[2]) - size(one[2])).slice(0, length);
    }
    return best;
  }

  /** Yield each word of at least three characters as [from, to, mean of its values]. */
  function* words() {
    const inWord = /[\p{L}\p{N}\p{M}_'\u2019]/u;
    for (let i = 0; i < count; i++) {
      const from = i;
      while (i < count && i < from + 40 && inWord.test(letters[i])) i++;
      if (i >= from + 3) yield [from, i, mean(sums, from, i)];
    }
  }

  /** Yield each line of at least ten characters as [from, to, mean of its values]. */
  function* lines() {
    for (let n = 0; n <= newlines.length; n++) {
      const from = n ? newlines[n - 1] + 1 : 0, to = newlines[n] ?? count;
      if (to - from >= 10) yield [from, to, mean(sums, from, to)];
    }
  }

  /** Fill a list with buttons; each jumps to the character with the largest value in its piece. */
  function fillList(id, pieces) {
    for (const [from, to, number, shown] of pieces) {
      const button = make("button"), item = make("li");
      button.append(make("b", "", format(Math.round(number))), make("span", "", shown));
      button.addEventListener("click", () => {
        let peak = from;
        for (let i = from; i < to; i++) if (size(value(i)) > size(value(peak))) peak = i;
        jump(peak);
      });
      item.append(button);
      element(id).append(item);
    }
    element(id).parentNode.hidden = !element(id).firstChild;
  }

  element("lists").firstChild.textContent = b ? "Words and lines where the models differ most" : "The most surprising words and lines";
  element("lists").addEventListener("toggle", () => {
    if (element("words").firstChild) return;
    fillList("words", largest(words(), 12));
    fillList("lines", largest(lines(), 12));
  });

  shadeVisible();
  document.body.dataset.ready = "";
}

main();
