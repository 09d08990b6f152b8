/* The page around the model of gpt.js. It shows text only as textContent, so a text cannot inject HTML. */

const SLICE = 40; // milliseconds of computing before the page responds to input
const BARS = 12; // tokens with a bar
const NUMBERS = ["length", "top-k", "seed"]; // ids of the number fields
const GREETING = 300; // characters that the page writes when it opens
const PACE = 32; // milliseconds between these characters, about reading speed
const END = "\x03"; // the end mark of documents that contain line breaks; the page draws a line for it
const MANY = 128; // elements that become plain text together: elements are slow, but attention needs those in its window
const { config, vocabulary, size, tensors, name, about, unit: tokenUnit, facts, passages, title, end } = JSON.parse(element("model").textContent);
const tokenizer = new (choose({ byte: ByteTokenizer, char: CharTokenizer }, vocabulary.kind))(vocabulary.characters);
const mark = tokenizer.encode(end).tokens; // the end mark of documents; each text is read after one
const [prompt, text, generate, goOn, shade] = ["prompt", "text", "generate", "continue", "shade"].map(element);
let model; // a GPT, once the weights are loaded
let decode; // a function from the next token to the text that this token completes
let units; // the last characters, {index, end, element}; `index` and `end` are those of the first and the last token
let unfinished; // the last unit while it lacks bytes; otherwise null
let given; // number of tokens in the prompt
let hidden; // number of tokens before the prompt, which the page does not show: the end mark, or a start token for no prompt
let looked = null; // the selected unit, whose attention the page shows; null selects the last unit
let task = 0; // number of the newest computation; older ones stop
let speed = null; // a function that returns the status to show, while the page generates text; otherwise null

/* Computing without blocking the page. */

const channel = new MessageChannel();

/** Let the page respond to input. Unlike setTimeout, which waits for some milliseconds, this resumes at once. */
function pause() {
  return new Promise((resolve) => {
    channel.port1.onmessage = resolve;
    channel.port2.postMessage(null);
  });
}

/** Repeat `step` while `wanted()` is true, and update the page after each slice. Return false if a newer task began.
    With `pace`, a slice is one step, and the next one begins `pace` milliseconds later. */
async function inSlices(wanted, step, pace = 0) {
  const mine = ++task;
  while (wanted()) {
    const end = performance.now() + SLICE;
    do step(); while (!pace && wanted() && performance.now() < end);
    show();
    await (pace ? new Promise((resolve) => setTimeout(resolve, pace)) : pause());
    if (mine !== task) return false;
  }
  return true;
}

/** Decode the weights in the page, stored as bf16; return {name: Float32Array}. */
async function loadWeights() {
  const source = element("weights"), base64 = source.textContent;
  const bytes = new Uint8Array((base64.length / 4) * 3);
  const piece = 2 ** 20; // characters to decode before the page responds; a multiple of 4, because 4 characters are 3 bytes
  for (let i = 0, filled = 0; i < base64.length; i += piece) {
    const part = atob(base64.slice(i, i + piece));
    for (let n = 0; n < part.length; n++) bytes[filled++] = part.charCodeAt(n);
    await pause();
  }
  source.remove(); // free the memory
  const halves = new Uint16Array(bytes.buffer, 0, bytes.length >> 1), words = new Uint32Array(halves.length);
  for (let n = 0; n < halves.length; n++) words[n] = halves[n] << 16; // bf16 is the upper half of fp32
  const weights = {};
  let start = 0;
  for (const [tensor, count] of tensors) {
    weights[tensor] = new Float32Array(words.buffer, 4 * start, count);
    start += count;
  }
  return weights;
}

/* Settings. */

/** Return the number in a field as an integer within the field's limits; for an empty field, return its default or 0. */
function whole(id) {
  const { valueAsNumber, defaultValue, min, max } = element(id);
  if (Number.isNaN(valueAsNumber)) return Number(defaultValue);
  return Math.min(max, Math.max(min, Math.trunc(valueAsNumber)));
}

/** Show which fields are invalid, and which number is used instead. */
function showInvalid() {
  const wrong = NUMBERS.map(element).filter(({ validity }) => !validity.valid);
  element("wrong").hidden = wrong.length === 0;
  element("wrong").textContent = wrong.map(({ id, labels, min, max, placeholder }) => {
    const range = `must be a whole number from ${min} to ${max}`;
    return `${labels[0].textContent.trim()}: ${range}; ${whole(id) || placeholder || 0} is used`;
  }).join(". ");
}

/** Return the probabilities of the next token. */
function nextProbabilities() {
  return probabilities(model.predict(), element("temperature").valueAsNumber, whole("top-k"));
}

/* The text. */

/** Replace the text by the prompt. If the prompt begins with all tokens that the model has read, read only the rest. */
function readPrompt() {
  const { tokens, unknown } = tokenizer.encode(prompt.value);
  element("unknown").hidden = unknown.length === 0;
  element("unknown").textContent = `Left out, because the model’s vocabulary does not contain them: ${unknown.map(called).join(", ")}`;
  const before = mark.length || tokens.length ? mark : [tokenizer.start], wanted = [...before, ...tokens];
  const continues = model.tokens.length <= wanted.length && model.tokens.every((token, i) => token === wanted[i]);
  if (!continues || hidden !== before.length) forget();
  hidden = before.length;
  given = wanted.length;
  looked = null;
  for (const unit of units) unit.element.classList.add("prompt");
  return inSlices(() => model.tokens.length < given, () => append(wanted[model.tokens.length]));
}

/** Delete the text from the page and from the model. */
function forget() {
  model.reset();
  decode = tokenizer.decoder();
  units = [];
  unfinished = null;
  text.replaceChildren();
}

/** Let the model read one more token, and show the character that the token begins, continues or completes. */
function append(token) {
  const index = model.tokens.length;
  model.read(token);
  if (index < hidden) return setText(addUnit(index), "");
  let completed = decode(token);
  if (completed && tokenizer.begins?.(token)) { // a new character begins, so the bytes before it never become a character
    setText(unfinished, completed); // U+FFFD
    unfinished = null;
    completed = "";
  }
  const unit = unfinished ?? addUnit(index);
  unit.end = index;
  unfinished = completed ? null : unit;
  setText(unit, completed || "\ufffd");
}

/** Set the text of a unit; it is empty for the hidden tokens before the prompt. */
function setText(unit, shown) {
  unit.element.textContent = shown;
  unit.element.classList.toggle("end", shown === END);
  unit.element.classList.toggle("break", shown === "" || shown === "\n");
}

/** Append a unit that begins with the token at `index`. */
function addUnit(index) {
  const unit = { index, end: index, element: make("i") };
  unit.element.unit = unit;
  unit.element.classList.toggle("prompt", index < given);
  // Each line has an element, so that the browser lays out only the last one again.
  if (units.length === 0 || ["\n", END].includes(units.at(-1).element.textContent)) text.append(Object.assign(make("div"), { dir: "auto" }));
  text.lastChild.append(unit.element);
  units.push(unit);
  if (units.length === model.slots + 2 * MANY) {
    for (const old of units.splice(0, MANY)) if (old.index >= given && !old.element.matches(".end")) old.element.replaceWith(old.element.textContent);
    text.normalize();
  }
  return unit;
}

/** Generate `length` more tokens, `pace` milliseconds apart. The page then shows `status` or, if that is empty, the speed. */
async function write(length = whole("length"), pace = 0, status = "") {
  const first = model.tokens.length, last = first + length, seed = whole("seed"), begun = performance.now();
  speed = () => {
    if (status) return status;
    const written = model.tokens.length - first;
    const rate = (1000 * written) / (performance.now() - begun);
    return `${count(written, tokenUnit)}, ${Math.round(rate).toLocaleString("en")} a second`;
  };
  looked = null;
  setStatus("Writing…");
  const ended = await inSlices(
    () => model.tokens.length < last,
    () => append(pick(nextProbabilities(), random(seed, model.tokens.length))),
    pace,
  );
  if (ended) stop();
}

/** Stop the current computation. */
function stop() {
  task++;
  const status = speed ? speed() : "";
  speed = null;
  setStatus(status);
  show();
}

/* Showing. */

/** Return a token's visible name, such as “space” or “byte FF”. */
function tokenName(token) {
  if (vocabulary.kind === "char") return called(tokenizer.characters[token]);
  return called(token < 0x80 ? String.fromCharCode(token) : `\\x${token.toString(16)}`);
}

const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

/** Show a status, and update the buttons. */
function setStatus(status) {
  element("status").textContent = status;
  text.classList.toggle("writing", Boolean(speed)); // shows a cursor
  generate.textContent = speed ? "Stop" : "Generate";
  goOn.disabled = Boolean(speed);
  element("looking").ariaLive = speed ? "off" : "polite";
}

/** Update everything that depends on the text and the settings. */
function show() {
  const heat = element("temperature").valueAsNumber;
  element("heat").textContent = heat ? heat.toFixed(2) : "greedy";
  if (model.tokens.length === 0) return;
  showBars();
  showAttention();
  if (speed) text.scrollTop = text.scrollHeight;
}

/** Show the most likely tokens as bars, and the sum of all others. */
function showBars() {
  const shares = nextProbabilities(), order = ranked(shares);
  Array.from(element("bars").children).forEach(({ firstChild: button }, i) => {
    button.token = order[i];
    setRow(button, order[i], shares[order[i]]);
  });
  const others = order.subarray(BARS);
  element("others").hidden = others.length === 0;
  const sum = others.reduce((total, token) => total + shares[token], 0);
  element("others").textContent = `${count(others.length, "other")} together: ${percent(sum)}`;
}

/** Show a token and its probability in a row of `makeRow`. */
function setRow(row, token, probability) {
  const [label, bar, share] = row.children;
  label.textContent = tokenName(token);
  label.classList.toggle("word", Array.from(label.textContent).length > 2);
  bar.style.setProperty("--share", probability);
  share.textContent = percent(probability);
}

/** Shade each character by the attention weight from the selected unit to it. */
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
  const quoted = ({ textContent }) => (textContent ? `“${called(textContent)}”` : "the start");
  const [most, sentence] = shadeAttention(units.map(({ element }) => element), weights, units.indexOf(unit), quoted);
  element("most").textContent = percent(most);
  element("looking").textContent = sentence;
}

/* Input. */

/** Return a list item; its only child contains one element each for the name, bar and probability of a token. */
function makeRow(tag) {
  const item = make("li"), row = make(tag);
  row.append(...["name", "bar", "percent"].map((part) => make("span", part)));
  item.append(row);
  return item;
}

/** Return a row of `makeRow` that appends its token to the text when it is clicked. */
function makeButton() {
  const item = makeRow("button"), button = item.firstChild;
  button.onclick = () => {
    stop();
    if (model.tokens.length < given) return; // the model has not read the whole prompt
    append(button.token);
    select(null);
  };
  return item;
}

/** Generate a new text from the prompt. */
async function begin() {
  stop();
  if (!(await readPrompt())) return;
  write();
  text.scrollIntoView({ block: "nearest" }); // on a phone, it is below the window
}

/** Show the attention of a unit; null selects the last unit. */
function select(unit) {
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
    showInvalid();
    begin();
  };
  prompt.oninput = () => { stop(); readPrompt(); };
  for (const id of ["temperature", "top-k", "layer", "head", "shade"]) element(id).oninput = show;
  for (const id of NUMBERS) element(id).addEventListener("input", showInvalid);
  document.onkeydown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) begin();
    else if (event.key === "Escape") speed ? stop() : select(null);
    else return;
    event.preventDefault();
  };
  text.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    select(units[units.indexOf(looked ?? units.at(-1)) + step] ?? looked);
    (looked ?? units.at(-1)).element.scrollIntoView({ block: "nearest" });
    event.preventDefault();
  };
  text.onclick = ({ target }) => select(target.unit ?? null); // a click or a tap
  text.onpointerover = ({ target, pointerType }) => pointerType === "mouse" && target.unit && select(target.unit);
  text.oncopy = (event) => { // the browser would add line breaks between the elements of lines
    event.clipboardData.setData("text/plain", getSelection().getRangeAt(0).cloneContents().textContent);
    event.preventDefault();
  };
  text.onpointerleave = ({ pointerType }) => pointerType === "mouse" && select(null);
}

async function start() {
  element("name").textContent = name;
  element("about").textContent = about;
  if (title) document.querySelector("h1").textContent = title;
  element("facts").textContent = facts.join(" · ");
  for (const [id, number] of [["layer", config.layers], ["head", config.heads]])
    for (let n = 0; n < number; n++) element(id).add(new Option(n));
  element("layer").selectedIndex = config.layers - 1;
  element("bars").append(...Array.from({ length: Math.min(BARS, size) }, makeButton));
  const weights = await loadWeights();
  model = new GPT(config, size, weights);
  forget();
  listen();
  startGame(weights);
  await readPrompt();
  /* For tests and the browser's console: the model, and a function from tokens to the logits after each of them. */
  const logits = (tokens, fresh = new GPT(config, size, weights)) => tokens.map((token) => (fresh.read(token), Array.from(fresh.predict())));
  window.chargpt = { model, logits };
  showInvalid(); // the browser may have kept the input of the last visit
  setStatus("");
  for (const id of ["generate", "continue", "dice", "clear"]) element(id).disabled = false;
  if (prompt.value) return;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  write(GREETING, still ? 0 : PACE, `Written by this model, seed ${whole("seed")}`);
}

start();
