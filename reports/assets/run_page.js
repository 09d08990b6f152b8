const data = JSON.parse(element("data").textContent);

/** Split text into strings and boxes; a box shows the code point of an invisible or bidirectional character. */
function* readable(text) {
  let plain = "";
  for (const letter of text) {
    const [kind, name] = mark(letter);
    if (kind !== "code") { plain += letter; continue; }
    yield plain;
    yield make("span", kind, name);
    plain = "";
  }
  yield plain;
}

/** Return an element with `text`, in which invisible characters are `readable`. */
function makeReadable(tag, text, className) {
  const node = make(tag, className);
  node.append(...readable(text));
  return node;
}

/** Return a paragraph that says why data is missing. */
const missing = (why) => make("p", "none", why);

// -- The baselines --------------------------------------------------------------------------------

{
  const most = Math.max(...data.baselines.map(([, nats]) => nats));
  for (const [name, nats] of data.baselines) {
    const row = make("li", name === "this model" ? "own" : ""), track = make("div"), bar = make("i");
    bar.style.width = `${(100 * nats) / most}%`;
    track.append(bar);
    row.append(make("span", "", name), track, make("em", "", nats.toFixed(4)));
    document.querySelector("#baselines .bars").append(row);
  }
}

// -- The curves ------------------------------------------------------------------------------------

{
  const { losses, validations, best, unit } = data.curves, keys = document.querySelector(".keys");
  const bestPoint = validations.find(([step]) => step === best);
  Object.assign(keys.querySelector(".best"), { textContent: `best checkpoint, ${stepName(best)}`, hidden: !bestPoint });
  const lines = [{ name: "training", entries: losses, style: "train" }, { name: "validation", entries: validations, style: "validation" }];
  if (losses.length + validations.length) curves(lines, bestPoint, unit);
  else {
    element("plot").replaceWith(missing("The last checkpoint contains no history of the losses."));
    keys.remove();
  }
}

// -- The samples -----------------------------------------------------------------------------------

function samples(history, best, copied) {
  const section = element("samples");
  const sample = (title, [, prompt, text]) => {
    const box = make("div", "box"), pre = make("pre");
    pre.append(makeReadable("span", prompt, "prompt"), ...readable(text));
    box.append(make("h3", "", title), pre);
    return box;
  };
  const last = make("div", "written");
  last.id = "sample";
  last.append(...best.map((entry) => sample(`the best checkpoint, temperature ${entry[0]}`, entry)));
  if (!history.length) {
    section.append(missing("No samples were generated during training."), last);
    if (copied) section.append(make("p", "soft small", copied));
    return;
  }
  const [, firstSamples] = history[0], [, firstPrompt] = firstSamples[0];
  section.append(make("p", "soft", firstPrompt ?
    "At each validation the model continued the same prompts (grey) with the same seeds." :
    "At each validation the model wrote documents with the same seeds."));
  const control = make("div", "control"), output = make("output"), slider = make("input"), steps = make("div", "steps");
  Object.assign(slider, { type: "range", min: 0, max: history.length - 1, value: history.length - 1, ariaLabel: "Samples by step" });
  control.append(slider, output);
  for (const [number, entries] of history) {
    const step = make("div", "step"), grid = make("div", "written");
    grid.append(...entries.map((entry) => sample(`temperature ${entry[0]}`, entry)));
    step.append(make("h3", "", stepName(number)), grid);
    steps.append(step);
  }
  slider.oninput = () => {
    [...steps.children].forEach((step, i) => step.classList.toggle("shown", i === Number(slider.value)));
    output.textContent = slider.ariaValueText = stepName(history[slider.value][0]);
  };
  slider.oninput();
  if (history.length > 1) section.append(control);
  section.append(steps, last);
  if (copied) section.append(make("p", "soft small", copied));
}

// -- Attention -------------------------------------------------------------------------------------

/** Show attention weights. `weights` contains, in base64, the lower triangle of each head, row by row; a byte is 255 times
    the square root of a weight. `of` is how many heads the model has. */
function attention({ tokens, heads, of, weights }) {
  const bytes = atob(weights), n = tokens.length, bytesPerHead = (n * (n + 1)) / 2;
  const byte = (head, row, column) => bytes.charCodeAt(head * bytesPerHead + (row * (row + 1)) / 2 + column);
  element("which").textContent = heads.length < of ? `${heads.length} of its ${of} heads` : of > 1 ? `all ${of} heads` : "the head";
  /** Paint a pixel for each pair of characters in the accent colour; the byte of the pair is the opacity. */
  function paint(canvas, head) {
    canvas.width = canvas.height = n;
    const context = canvas.getContext("2d"), image = context.createImageData(n, n);
    for (let row = 0; row < n; row++)
      for (let column = 0; column <= row; column++) image.data[4 * (row * n + column) + 3] = byte(head, row, column);
    context.putImageData(image, 0, 0);
    context.globalCompositeOperation = "source-in";
    context.fillStyle = getComputedStyle(canvas).color;
    context.fillRect(0, 0, n, n);
  }

  const buttons = heads.map((name, i) => {
    const button = make("button"), canvas = make("canvas");
    button.type = "button";
    canvas.ariaHidden = "true";
    button.append(canvas, make("span", "", name));
    button.onclick = button.onpointerenter = button.onfocus = () => select(i, query);
    return button;
  });
  element("heads").append(...buttons);

  const text = element("seen"), side = element("pair").parentNode;
  const letters = tokens.map((token) => {
    const [kind, shown] = mark(token), lone = /^\\x..$/.test(token); // a byte that is not a character, such as \xff
    return Object.assign(make("i", kind, lone || kind === "code" ? "·" : shown), { token });
  });
  text.append(...letters);

  let head = 0, query = n - 1;
  function select(newHead, newQuery) {
    [head, query] = [newHead, newQuery];
    buttons.forEach((button, i) => { button.ariaPressed = i === head; });
    letters.forEach((letter, i) => {
      letter.classList.toggle("looked", i === query);
      letter.classList.toggle("after", i > query);
    });
    const row = tokens.map((_, i) => (i <= query ? (byte(head, query, i) / 255) ** 2 : 0));
    element("head").textContent = heads[head];
    [, element("pair").textContent] = shadeAttention(letters, row, query, ({ token }) => `“${called(token)}”`);
    const keys = tokens.slice(0, query + 1).map((token, i) => [`${called(token)}  ${i}`, row[i]]);
    side.querySelector(".bars")?.remove();
    side.append(bars(keys.sort((a, b) => b[1] - a[1]).slice(0, 5)));
  }
  text.onpointermove = text.onpointerdown = ({ target }) => { if (letters.includes(target)) select(head, letters.indexOf(target)); };
  onArrow(text, (right) => select(head, clamp(query + right, 0, n - 1)));

  // The browser does not repaint a canvas when the colour scheme changes.
  const repaint = () => buttons.forEach((button, i) => paint(button.firstChild, i));
  for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).addEventListener("change", repaint);
  repaint();
  select(0, n - 1);
}

// -- The passage -----------------------------------------------------------------------------------

/** Show the surprisal of each character of the passage; `likely` are [character, probability] rows for each. */
function passage({ letters: passageText, nats: costs, likely }) {
  makeSurprisalScale();
  const text = element("text"), cursor = element("cursor"), letters = Array.from(passageText);
  const spans = letters.map((letter, i) => {
    const [kind, shown] = mark(letter);
    return make("span", `${kind} ${shade(surprisalStep(costs[i]))}`.trim(), shown);
  });
  text.firstChild.append(...spans);
  const boxOf = (i) => spans[i].getClientRects()[0];
  let selected = -1;
  function select(i) {
    selected = i;
    const box = boxOf(i), body = make("section");
    if (!box) return;
    body.append(...cardBody(letters[i], costs[i], i ? likely[i] : null));
    cursor.hidden = false;
    placeCursor(box);
    showCard(box, cardHeader(letters[i], `position ${i}`), body);
  }
  function close() {
    if (selected < 0) return; // the card may be showing a point of the plot
    selected = -1;
    card.hidden = cursor.hidden = true;
  }
  /** Return the index of the nearest character in the line below (down = 1) or above (down = -1); `from` if there is no
      such line. */
  function nextLine(from, down) {
    const start = boxOf(from);
    const distance = (i) => { // vertical distance counts first, then horizontal distance
      const box = boxOf(i), lines = box ? (box.top - start.top) * down : 0;
      return lines > start.height / 2 ? lines * 1000 + Math.abs(box.left - start.left) : Infinity;
    };
    const distances = letters.map((_, i) => distance(i)), least = Math.min(...distances);
    return least < Infinity ? distances.indexOf(least) : from;
  }
  text.onpointermove = text.onpointerdown = ({ target }) => {
    const i = spans.indexOf(target.closest("#text p span"));
    if (i < 0) close(); else if (i !== selected) select(i);
  };
  onLeave(text, close);
  onArrow(text, (right, down) => {
    const to = down && selected >= 0 ? nextLine(selected, down) : clamp(selected + right, 0, letters.length - 1);
    spans[to].scrollIntoView({ block: "nearest" });
    select(to);
  });
  addEventListener("scroll", () => { if (selected >= 0) select(selected); }, { passive: true });
}

// -- The settings ----------------------------------------------------------------------------------

for (const id of ["command", "exact_command", "config"]) element(id).append(...readable(data[id]));

samples(data.samples, data.written, data.copied);
attention(data.attention);
passage(data.passage);
document.body.dataset.ready = "";
