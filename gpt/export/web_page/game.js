/* The game: guess the next character (C. E. Shannon, Prediction and Entropy of Printed English, 1951). */

const MAX_GUESSES = 5; // one more stands for a miss
const TO_GUESS = 100; // characters at the end of a passage; those before are shown
const MAY_FINISH = 40; // characters after which a game may end
const ROUGH = 50; // characters below which the bounds are rough
const SHOWN = { " ": "␣", "\n": "↵", "\t": "⇥" };

let round = -1; // number of the game; its passage is round % passages.length
let rival; // the model that plays, with a state of its own
let passage; // its characters
let player, opponent; // guesses that the visitor and the model needed for each character
let nats; // the model's exact loss on them, summed
let tried; // wrong guesses at the current character
let over; // whether this game has ended

/** Bounds of the bits per character, from the guesses needed for each: equation 17 of the paper.
    A miss is a sixth guess in the lower bound, and one of all other characters, equally likely, in the upper;
    of five characters or fewer, "Show it" leaves no other. */
function shannonBounds(needed, size) {
  const shares = Array.from({ length: MAX_GUESSES + 1 }, (_, i) => needed.filter((n) => n === i + 1).length / needed.length);
  let upper = shares[MAX_GUESSES] && shares[MAX_GUESSES] * Math.log2(Math.max(1, size - MAX_GUESSES)), lower = 0;
  for (const share of shares) if (share) upper -= share * Math.log2(share);
  shares.sort((a, b) => b - a); // the equation is for guesses in the order of their frequency
  shares.forEach((share, i) => lower += (i + 1) * (share - (shares[i + 1] ?? 0)) * Math.log2(i + 1));
  return [lower, upper];
}

/** Index in the passage of the character to guess. */
const position = () => passage.length - TO_GUESS + player.length;
const visible = (letter) => SHOWN[letter] ?? called(letter);
const guesses = (needed) => (needed > MAX_GUESSES ? "more than five guesses" : needed === 1 ? "1 guess" : `${needed} guesses`);

/** Let the model read up to the character to guess, a token at a time, so that the page responds. */
function readAhead() {
  if (rival.tokens.length >= position()) return;
  rival.read(tokenizer.tokens.get(passage[rival.tokens.length]));
  setTimeout(readAhead);
}

/** Begin the game with the next passage. */
function nextRound() {
  passage = Array.from(passages[++round % passages.length]);
  [player, opponent, tried, nats, over] = [[], [], [], 0, false];
  rival.reset();
  element("model-bars").hidden = true;
  element("compared").textContent = "After your answer, the five characters that the model found most likely are shown here.";
  showGame("");
  readAhead();
}

/** Take a typed character as the visitor's guess. */
function guess(letter) {
  const right = passage[position()];
  if (over || !letter) return;
  if (letter === right) return settle(tried.length + 1, "Right");
  if (!tokenizer.tokens.has(letter)) return showGame(`${visible(letter)} does not occur in texts of this model. That is no guess.`);
  if (!tried.includes(letter)) tried.push(letter);
  if (tried.length === MAX_GUESSES) return settle(MAX_GUESSES + 1, "Missed");
  showGame(`Not ${visible(letter)}. Guess ${tried.length + 1} of ${MAX_GUESSES}.`);
}

/** Show the character: the visitor needed this number of guesses for it. */
function settle(needed, said) {
  while (rival.tokens.length < position()) rival.read(tokenizer.tokens.get(passage[rival.tokens.length]));
  const letter = passage[position()], token = tokenizer.tokens.get(letter);
  const shares = probabilities(rival.predict(), 1, 0), order = ranked(shares), rank = order.indexOf(token) + 1;
  Array.from(element("model-bars").children).forEach(({ firstChild: row }, i) => {
    setBar(row, order[i], shares[order[i]]);
    row.classList.toggle("right", order[i] === token);
  });
  element("model-bars").hidden = false;
  element("compared").textContent = `The model gave ${visible(letter)} ${percent(shares[token])}: its guess ${rank}. You needed ${guesses(needed)}.`;
  nats -= Math.log(shares[token]);
  player.push(needed);
  opponent.push(Math.min(rank, MAX_GUESSES + 1));
  tried = [];
  over = player.length === TO_GUESS;
  showGame(`${said}: ${visible(letter)}. The model needed ${guesses(opponent.at(-1))}.`);
  readAhead();
}

/** Show the passage and the score. */
function showGame(said) {
  const first = passage.length - TO_GUESS, length = player.length;
  const parts = passage.slice(0, first + length).map((letter, i) => {
    const part = document.createElement("i"), needed = player[i - first];
    part.textContent = SHOWN[letter] ?? letter;
    part.className = `${needed ? `needed-${needed === 1 ? 1 : needed > MAX_GUESSES ? "more" : "some"}` : ""} ${SHOWN[letter] ? "sign" : ""}`;
    return [part, letter === "\n" ? "\n" : letter === " " ? document.createElement("wbr") : ""];
  });
  const cursor = Object.assign(document.createElement("b"), { textContent: over ? "" : "?" });
  element("passage").replaceChildren(...parts.flat(), cursor);
  element("tried").replaceChildren(...tried.map((letter) => Object.assign(document.createElement("s"), { textContent: visible(letter) })));
  element("verdict").textContent = said || (length ? "" : "What comes at the ?");
  element("progress").textContent = `${length} of ${TO_GUESS}`;
  for (const id of ["typed", "reveal", "space", "enter", "tab"]) element(id).disabled = over;
  element("finish").disabled = over || length < MAY_FINISH;
  element("again").classList.toggle("main", over);
  element("plot").ariaLabel = `Guesses needed, 6 for more than five. You: ${player.join(", ")}. The model: ${opponent.join(", ")}.`;
  [["you", player, -1], ["them", opponent, 1]].forEach(([id, needed, direction]) => {
    const columns = needed.map((n, i) => `M${i + 0.5} ${6.5 + 0.25 * direction}v${direction * n}`);
    element(id).setAttribute("d", columns.join(""));
    element(`${id}-first`).textContent = length ? `${Math.round((100 * needed.filter((n) => n === 1).length) / length)} %` : "–";
    element(`${id}-bits`).textContent = length ? shannonBounds(needed, size).map((bits) => bits.toFixed(2)).join(" to ") : "–";
  });
  element("exact").textContent = length ? (nats / Math.LN2 / length).toFixed(2) : "–";
  element("rough").hidden = length >= ROUGH;
  element("meaning").textContent = over ? sentence() : "";
  if (!over) return;
  element("meaning").focus({ preventScroll: true }); // not Again: whoever types on would press it
  element("meaning").scrollIntoView({ block: "center" });
}

/** What the score says, in words. */
function sentence() {
  const [mine, theirs] = [player, opponent].map((needed) => shannonBounds(needed, size));
  const range = ([lower, upper]) => `${lower.toFixed(2)} to ${upper.toFixed(2)}`;
  const better = mine[1] < theirs[0] ? "you predicted it better" : theirs[1] < mine[0] ? "the model predicted it better"
    : "the ranges overlap, so it is open who predicted better";
  return `Knowing the text before it, you needed ${range(mine)} bits (yes-or-no questions) for each character, the model ${range(theirs)}; ${better}.`;
}

/** Set up the game, if the page has passages. */
function startGame(weights) {
  if (!passages) return;
  element("game").hidden = element("to-game").hidden = false;
  if (vocabulary.kind === "byte") return element("play").replaceWith("There is no game here: a token of this model is a byte, and nobody types bytes.");
  rival = new GPT(config, size, weights);
  element("model-bars").append(...Array.from({ length: Math.min(MAX_GUESSES, size) }, () => makeBar("div")));
  const typed = element("typed"), touch = matchMedia("(pointer: coarse)").matches;
  const take = ({ isComposing }) => {
    if (isComposing && !touch) return; // an accent waits for its letter; keyboards of phones always compose
    const [letter] = typed.value;
    typed.value = "";
    guess(letter);
  };
  typed.oninput = take;
  typed.addEventListener("compositionend", () => take({}));
  typed.onkeydown = (event) => {
    if (event.repeat) event.preventDefault(); // a key held down is one guess
    if (event.key !== "Escape" || event.isComposing) return;
    event.stopPropagation();
    if (!event.repeat) element("reveal").click();
  };
  const actions = {
    space: () => guess(" "), enter: () => guess("\n"), tab: () => guess("\t"), reveal: () => settle(MAX_GUESSES + 1, "Shown"),
    finish: () => { over = true; showGame(""); }, again: nextRound,
  };
  for (const id in actions) element(id).onclick = () => {
    actions[id]();
    if (!over) typed.focus({ preventScroll: true });
  };
  element("tab").hidden = !tokenizer.tokens.has("\t"); // the key moves the focus
  nextRound();
}
