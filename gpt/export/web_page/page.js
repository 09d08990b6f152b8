/* The page: gives the input to the model of gpt.js and shows its output, always as textContent. */

const SLICE = 40; // milliseconds of computing between two checks for input
const BARS = 12;
const NUMBERS = ["length", "top-k", "seed"];
const GREETING = 200; // characters that the page writes when it opens
const MANY = 128; // characters beyond the attention window that become plain text at once: elements are slow

const { config, vocabulary, size, tensors, name, facts, passages } = JSON.parse(element("model").textContent);
const tokenizer = vocabulary.kind === "byte" ? new ByteTokenizer() : new CharTokenizer(vocabulary.characters);
const [prompt, text, generate, goOn, shade] = ["prompt", "text", "generate", "continue", "shade"].map(element);
let model; // a GPT, once the weights are loaded
let decode; // from a token to the text that it completes
let units; // characters that attention may cover: {index, end, element}; one of several bytes has several tokens
let unfinished; // the last of them while bytes of it are missing
let given; // how many tokens are the prompt's
let empty; // whether nothing was typed: the prompt is then a line break that is not shown
let looked = null; // the unit whose attention is shown; null for the last
let task = 0; // number of the current computation; a newer one ends the older
let speed = null; // while generating, a function that returns its speed in words

/* Computing without blocking the page. */

const channel = new MessageChannel();

/** Let the page respond; resumes at once, where setTimeout would wait for milliseconds. */
function pause() {
  return new Promise((resolve) => {
    channel.port1.onmessage = resolve;
    channel.port2.postMessage(null);
  });
}

/** Repeat `step` while `wanted`, updating the page after each slice; false if a newer task has begun. */
async function inSlices(wanted, step) {
  const mine = ++task;
  while (wanted()) {
    const end = performance.now() + SLICE;
    while (wanted() && performance.now() < end) step();
    show();
    await pause();
    if (mine !== task) return false;
  }
  return true;
}

/** Decode the weights in the page: name -> Float32Array. */
async function loadWeights() {
  const source = element("weights"), base64 = source.textContent;
  const bytes = new Uint8Array((base64.length / 4) * 3);
  const piece = 2 ** 20; // characters, of which 4 make 3 bytes
  for (let i = 0, filled = 0; i < base64.length; i += piece) {
    const part = atob(base64.slice(i, i + piece));
    for (let n = 0; n < part.length; n++) bytes[filled++] = part.charCodeAt(n);
    await pause();
  }
  source.remove(); // its memory is free again
  const weights = {};
  let start = 0;
  for (const [tensor, count] of tensors) {
    weights[tensor] = new Float32Array(bytes.buffer, 4 * start, count);
    start += count;
  }
  return weights;
}

/* Settings. */

/** The whole number in a field, clamped to its range; if empty, its default or 0. */
function whole(id) {
  const { valueAsNumber, defaultValue, min, max } = element(id);
  if (Number.isNaN(valueAsNumber)) return Number(defaultValue);
  return Math.min(max, Math.max(min, Math.trunc(valueAsNumber)));
}

/** Show which fields are invalid, and what is used instead. */
function sayWrong() {
  const wrong = NUMBERS.map(element).filter(({ validity }) => !validity.valid);
  element("wrong").hidden = wrong.length === 0;
  element("wrong").textContent = wrong.map(({ id, labels, min, max, placeholder }) => {
    const range = `must be a whole number from ${min} to ${max}`;
    return `${labels[0].textContent.trim()}: ${range}; ${whole(id) || placeholder || 0} is used`;
  }).join(". ");
}

/** The probabilities of the next token. */
function odds() {
  return probabilities(model.predict(), element("temperature").valueAsNumber, whole("top-k"));
}

/* The text. */

/** Make the text the prompt; tokens that the model has read already are not read again. */
function readPrompt() {
  const { tokens, unknown } = tokenizer.encode(prompt.value);
  element("unknown").hidden = unknown.length === 0;
  element("unknown").textContent = `Left out, not in the vocabulary of this model: ${unknown.map(called).join(", ")}`;
  const wanted = tokens.length ? tokens : [tokenizer.start];
  const continues = model.tokens.length <= wanted.length && model.tokens.every((token, i) => token === wanted[i]);
  if (!continues || empty !== (tokens.length === 0)) forget();
  empty = tokens.length === 0;
  given = wanted.length;
  looked = null;
  for (const unit of units) unit.element.classList.add("prompt");
  return inSlices(() => model.tokens.length < given, () => append(wanted[model.tokens.length]));
}

/** Empty the page and the model of text. */
function forget() {
  model.reset();
  decode = tokenizer.decoder();
  units = [];
  unfinished = null;
  text.replaceChildren();
}

/** Read one more token and put the character that it begins or ends on the page. */
function append(token) {
  const index = model.tokens.length;
  model.read(token);
  if (empty && index === 0) return say(addUnit(index), "");
  let said = decode(token);
  if (said && tokenizer.begins(token)) { // it replaces the bytes before, which are no character
    say(unfinished, said);
    unfinished = null;
    said = "";
  }
  const unit = unfinished ?? addUnit(index);
  unit.end = index;
  unfinished = said ? null : unit;
  say(unit, said || "\ufffd");
}

/** Show the text of a unit; none for the line break of an empty prompt. */
function say(unit, said) {
  unit.element.textContent = said;
  unit.element.classList.toggle("break", said === "" || said === "\n");
}

/** Append a character to the text, which begins with the token at `index`. */
function addUnit(index) {
  const unit = { index, end: index, element: document.createElement("i") };
  unit.element.unit = unit;
  unit.element.classList.toggle("prompt", index < given);
  if (units.length === 0 || units.at(-1).element.textContent === "\n") { // an element for each line, so that only the last one is laid out again
    text.append(document.createElement("div"));
    text.lastChild.dir = "auto";
  }
  text.lastChild.append(unit.element);
  units.push(unit);
  if (units.length === model.slots + 2 * MANY) {
    for (const old of units.splice(0, MANY)) if (old.index >= given) old.element.replaceWith(old.element.textContent);
    text.normalize();
  }
  return unit;
}

/** Continue the text; true if it was written to its end. */
async function write(length = whole("length")) {
  const first = model.tokens.length, last = first + length, seed = whole("seed");
  const begun = performance.now();
  speed = () => {
    const written = model.tokens.length - first;
    const rate = (1000 * written) / (performance.now() - begun);
    return `${count(written, "character")}, ${Math.round(rate).toLocaleString("en")} a second`;
  };
  looked = null;
  sayState("Writing…");
  const ended = await inSlices(
    () => model.tokens.length < last,
    () => append(pick(odds(), random(seed, model.tokens.length))),
  );
  if (ended) stop();
  return ended;
}

/** Show at once what the model does: a short text without a prompt. */
async function greet() {
  const seed = whole("seed");
  if (await write(GREETING)) sayState(`Written by this model, seed ${seed}`);
}

/** End what is being computed. */
function stop() {
  task++;
  const said = speed ? speed() : "";
  speed = null;
  sayState(said);
  show();
}

/* Showing. */

/** The name of a token. */
function tokenName(token) {
  if (vocabulary.kind === "char") return called(tokenizer.characters[token]);
  return called(token < 0x80 ? String.fromCharCode(token) : `\\x${token.toString(16)}`);
}

const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

/** Show a status, and update the buttons. */
function sayState(said) {
  element("status").textContent = said;
  generate.textContent = speed ? "Stop" : "Generate";
  goOn.disabled = Boolean(speed);
  element("looking").ariaLive = speed ? "off" : "polite";
}

/** Update everything that depends on the text and the settings. */
function show() {
  const heat = element("temperature").valueAsNumber;
  element("heat").textContent = heat ? heat.toFixed(2) : "greedy";
  if (model.tokens.length === 0) return;
  showOdds();
  showAttention();
  if (speed) text.scrollTop = text.scrollHeight;
}

/** The most likely tokens as bars, the others summed. */
function showOdds() {
  const shares = odds();
  const order = ranked(shares);
  Array.from(element("bars").children).forEach(({ firstChild: button }, i) => {
    button.token = order[i];
    setBar(button, order[i], shares[order[i]]);
  });
  const others = order.subarray(BARS);
  element("others").hidden = others.length === 0;
  const sum = others.reduce((total, token) => total + shares[token], 0);
  element("others").textContent = `${count(others.length, "other")} together: ${percent(sum)}`;
}

/** Show a token and its probability in a row that `makeBar` has made. */
function setBar(row, token, probability) {
  const [label, bar, share] = row.children;
  label.textContent = tokenName(token);
  label.classList.toggle("word", Array.from(label.textContent).length > 2);
  bar.style.setProperty("--share", probability);
  share.textContent = percent(probability);
}

/** Shade each character by its attention weight from the selected one; the largest is darkest. */
function showAttention() {
  const unit = looked ?? units.at(-1);
  const seen = shade.checked && model.attention(element("layer").selectedIndex, element("head").selectedIndex, unit.end);
  text.classList.toggle("shaded", Boolean(seen));
  text.querySelector(".looked")?.classList.remove("looked");
  unit.element.classList.add("looked");
  element("looking").textContent = element("most").textContent = "";
  if (!seen) return;
  const weights = units.map(({ index, end }) => {
    let sum = 0;
    for (let at = Math.max(index, seen.from); at <= Math.min(end, unit.end); at++) sum += seen.weights[at - seen.from];
    return sum;
  });
  const quoted = ({ textContent: said }) => (said ? `“${called(said)}”` : "the start");
  const [most, said] = shadeAttention(units.map((each) => each.element), weights, units.indexOf(unit), quoted);
  element("most").textContent = percent(most);
  element("looking").textContent = said;
}

/* Input. */

/** Make the row of a token: an item of a list with one element, in which are its name, its bar and its probability. */
function makeBar(tag) {
  const item = document.createElement("li"), row = document.createElement(tag);
  for (const part of ["name", "bar", "percent"]) {
    const span = document.createElement("span");
    span.className = part;
    row.append(span);
  }
  item.append(row);
  return item;
}

/** Make a bar that continues the text with its token when it is clicked. */
function makeButton() {
  const item = makeBar("button"), button = item.firstChild;
  button.onclick = () => {
    stop();
    if (model.tokens.length < given) return; // still reading
    append(button.token);
    looked = null;
    show();
  };
  return item;
}

/** Generate again from the prompt. */
async function begin() {
  stop();
  if (await readPrompt()) write();
}

function look(unit) {
  looked = unit;
  if (!speed) show();
}

function listen() {
  generate.onclick = () => (speed ? stop() : begin());
  goOn.onclick = () => model.tokens.length < given || write();
  element("clear").onclick = () => {
    prompt.value = "";
    prompt.oninput();
    prompt.focus();
  };
  element("dice").onclick = () => {
    element("seed").value = crypto.getRandomValues(new Uint32Array(1))[0];
    sayWrong();
    begin();
  };
  prompt.oninput = () => {
    stop();
    readPrompt();
  };
  for (const id of ["temperature", "top-k", "layer", "head", "shade"]) element(id).oninput = show;
  for (const id of NUMBERS) element(id).addEventListener("input", sayWrong);
  document.onkeydown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) begin();
    else if (event.key === "Escape") speed ? stop() : look(null);
    else return;
    event.preventDefault();
  };
  text.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const at = looked ? units.indexOf(looked) : units.length - 1;
    look(units[at + step] ?? looked);
    (looked ?? units.at(-1)).element.scrollIntoView({ block: "nearest" });
    event.preventDefault();
  };
  text.onclick = ({ target }) => look(target.unit ?? null); // a tap, too
  text.onpointerover = ({ target, pointerType }) => pointerType === "mouse" && target.unit && look(target.unit);
  text.oncopy = (event) => { // without the line breaks that the browser would add between lines
    event.clipboardData.setData("text/plain", getSelection().getRangeAt(0).cloneContents().textContent);
    event.preventDefault();
  };
  text.onpointerleave = ({ pointerType }) => pointerType === "mouse" && look(null);
}

async function start() {
  document.title = `${name} · chargpt`;
  element("name").textContent = name;
  element("facts").textContent = facts.join(" · ");
  for (const [id, number] of [["layer", config.layers], ["head", config.heads]])
    for (let n = 1; n <= number; n++) element(id).add(new Option(n));
  element("layer").selectedIndex = config.layers - 1;
  element("bars").append(...Array.from({ length: Math.min(BARS, size) }, makeButton));
  const weights = await loadWeights();
  model = new GPT(config, size, weights);
  forget();
  listen();
  startGame(weights);
  await readPrompt();
  /* For tests and the curious: the logits after each of some tokens. */
  window.chargpt = {
    model,
    logits(tokens) {
      const fresh = new GPT(config, size, weights);
      return tokens.map((token) => (fresh.read(token), Array.from(fresh.predict())));
    },
  };
  sayWrong(); // a browser may keep input across a reload
  sayState("");
  for (const id of ["generate", "continue", "clear"]) element(id).disabled = false;
  if (!prompt.value) greet();
}

start();
