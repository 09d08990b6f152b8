/* The game: guess the next character (C. E. Shannon, Prediction and Entropy of Printed English, 1951). */

const MAX_GUESSES = 5; // a missed character is stored as MAX_GUESSES + 1 guesses
const TO_GUESS = 100; // characters to guess at the end of a passage; the page shows the characters before them
const MAY_FINISH = 40; // guessed characters after which the visitor may end the game
const ROUGH = 50; // with fewer guessed characters, the page calls the bounds rough
const SIGNS = { " ": "␣", "\n": "↵", "\t": "⇥" };

let round = -1; // number of the game; its passage is round % passages.length
let rival; // a GPT of its own for the game
let passage; // the characters of this game's text
let player, opponent; // how many guesses the visitor and the model needed, for each character
let nats; // sum of the model's losses on these characters
let tried; // wrong guesses at the current character
let over; // true after the end of this game

/** Return the lower and upper bounds on the bits per character, by equation 17 of the paper, from the numbers of guesses.
    `size` is the number of characters in the vocabulary. A miss counts as a sixth guess in the lower bound. In the upper
    bound it counts as one of all characters, equally likely: a character that was shown may have been the first guess. */
function shannonBounds(needed, size) {
  const shares = Array.from({ length: MAX_GUESSES + 1 }, (_, i) => needed.filter((n) => n === i + 1).length / needed.length);
  let upper = shares[MAX_GUESSES] * Math.log2(size), lower = 0;
  for (const share of shares) if (share) upper -= share * Math.log2(share);
  shares.sort((a, b) => b - a); // the equation is for guesses in the order of their frequency
  shares.forEach((share, i) => lower += (i + 1) * (share - (shares[i + 1] ?? 0)) * Math.log2(i + 1));
  return [lower, upper];
}

/** Return the index in the passage of the character to guess. */
const position = () => passage.length - TO_GUESS + player.length;
const visible = (letter) => SIGNS[letter] ?? called(letter);
const quoted = (letter) => `“${visible(letter)}”`;
const guesses = (needed) => (needed > MAX_GUESSES ? "more than five guesses" : needed === 1 ? "1 guess" : `${needed} guesses`);

/** Return how many characters of the passage the model has read; the end mark of documents comes before them. */
const known = () => rival.tokens.length - mark.length;
const readNext = () => rival.read(tokenizer.tokens.get(passage[known()]));

/** Let the model read up to the character to guess. The page responds to input after each token. */
function readAhead() {
  if (known() >= position()) return;
  readNext();
  setTimeout(readAhead);
}

/** Begin a game with the next passage. */
function nextRound() {
  passage = Array.from(passages[++round % passages.length]);
  [player, opponent, tried, nats, over] = [[], [], [], 0, false];
  rival.reset();
  for (const token of mark) rival.read(token);
  element("model-bars").hidden = true;
  element("compared").textContent = "After your answer, the five characters that the model found most likely appear here.";
  showGame("");
  if (round) element("passage").scrollIntoView({ block: "nearest" });
  readAhead();
}

/** Check a character that the visitor guessed, and update the page. */
function guess(letter) {
  const right = passage[position()];
  if (over || !letter) return;
  if (letter === right) return settle(tried.length + 1, "Right");
  if (!tokenizer.tokens.has(letter)) return showGame(`${quoted(letter)} is not in the model’s vocabulary, so it does not count as a guess.`);
  if (!tried.includes(letter)) tried.push(letter);
  if (tried.length === MAX_GUESSES) return settle(MAX_GUESSES + 1, "Missed");
  showGame(`Not ${quoted(letter)}. Guess ${tried.length + 1} of ${MAX_GUESSES}.`);
}

/** Score and show the current character, for which the visitor needed this number of guesses; `verdict` says how it ended. */
function settle(needed, verdict) {
  while (known() < position()) readNext();
  const letter = passage[position()], token = tokenizer.tokens.get(letter);
  const shares = probabilities(rival.predict(), 1, 0), order = ranked(shares), rank = order.indexOf(token) + 1;
  Array.from(element("model-bars").children).forEach(({ firstChild: row }, i) => {
    setRow(row, order[i], shares[order[i]]);
    row.classList.toggle("right", order[i] === token);
  });
  element("model-bars").hidden = false;
  element("compared").textContent = `The model gave ${quoted(letter)} a probability of ${percent(shares[token]).replace(" ", "\u00a0")}: its guess ${rank}. You ${verdict === "Shown" ? "had it shown" : `needed ${guesses(needed)}`}.`;
  nats -= Math.log(shares[token]);
  player.push(needed);
  opponent.push(Math.min(rank, MAX_GUESSES + 1));
  tried = [];
  over = player.length === TO_GUESS;
  const asked = Array.from(order.slice(0, Math.min(rank, MAX_GUESSES)), (each) => quoted(tokenizer.characters[each])).join(" ");
  showGame(`${verdict}: ${quoted(letter)}. The model guessed ${asked}${rank > MAX_GUESSES ? " …" : ""}`);
  readAhead();
}

/** Show the passage, the score and a verdict. */
function showGame(verdict) {
  const first = passage.length - TO_GUESS, length = player.length;
  const parts = passage.slice(0, first + length).map((letter, i) => {
    const part = make("i", "", SIGNS[letter] ?? letter), needed = player[i - first];
    part.classList.toggle("sign", letter in SIGNS);
    part.classList.toggle("needed-1", needed === 1);
    part.classList.toggle("needed-more", needed > MAX_GUESSES);
    return [part, letter === "\n" ? "\n" : letter === " " ? make("wbr") : ""];
  });
  element("passage").replaceChildren(...parts.flat(), make("b", "", over ? "" : "?"));
  element("tried").replaceChildren(...tried.map((letter) => make("s", "", visible(letter))));
  element("verdict").textContent = verdict || (length ? "" : "What comes at the ?");
  element("progress").textContent = `${length} of ${TO_GUESS}`;
  for (const id of ["typed", "reveal", "space", "enter", "tab"]) element(id).disabled = over;
  element("finish").disabled = over || length < MAY_FINISH;
  element("again").classList.toggle("main", over);
  element("plot").ariaLabel = `Guesses for each character; 6 is a missed character. You: ${player.join(", ")}. The model: ${opponent.join(", ")}.`;
  [["you", player, -1], ["them", opponent, 1]].forEach(([id, needed, direction]) => {
    const columns = needed.map((n, i) => `M${i + 0.5} ${6.5 + 0.25 * direction}v${direction * n}`);
    element(id).setAttribute("d", columns.join(""));
    element(`${id}-first`).textContent = length ? `${Math.round((100 * needed.filter((n) => n === 1).length) / length)} %` : "–";
    element(`${id}-bits`).textContent = length ? shannonBounds(needed, size).map((bits) => bits.toFixed(2)).join(" to ") : "–";
  });
  element("guesses").hidden = !length;
  element("exact").textContent = length ? (nats / Math.LN2 / length).toFixed(2) : "–";
  element("rough").hidden = length >= ROUGH;
  element("meaning").textContent = over ? sentence() : "";
  Object.assign(element("copy"), { hidden: !over, textContent: "Copy this" });
  if (!over) return;
  element("meaning").focus({ preventScroll: true }); // a focused button would be pressed by a visitor who is still typing
  element("meaning").scrollIntoView({ block: "center" });
}

/** Return the score in words. */
function sentence() {
  const [mine, theirs] = [player, opponent].map((needed) => shannonBounds(needed, size));
  const range = ([lower, upper]) => `${lower.toFixed(2)} to ${upper.toFixed(2)}`;
  // McNemar's test, on the characters that only one side guessed on the first try: is its lead significant (p < 0.05)?
  const leads = player.map((needed, i) => (needed === 1) - (opponent[i] === 1)), lead = leads.reduce((sum, each) => sum + each);
  const certain = Math.abs(lead) > 1.96 * Math.sqrt(leads.filter(Boolean).length);
  const better = certain ? `${lead > 0 ? "You" : "The model"} guessed more characters on the first try, and by more than chance: ${lead > 0 ? "you" : "it"} predicted the text better.`
    : mine[1] < theirs[0] ? "You predicted the text better." : theirs[1] < mine[0] ? "The model predicted the text better."
    : "The ranges overlap, so it is undecided who predicted the text better.";
  const [yours, its] = [player, opponent].map((needed) => needed.filter((n) => n === 1).length);
  const about = player.length < ROUGH ? "Roughly, for" : "For";
  return `You guessed ${yours} of ${player.length} characters on the first try, the model ${its}. ${about} each character, you needed ${range(mine)} bits (yes-or-no questions), and the model needed ${range(theirs)}. ${better}`;
}

/** Set up the game if the page has passages; otherwise leave it hidden. */
function startGame(weights) {
  if (!passages) return;
  element("game").hidden = false;
  if (vocabulary.kind === "byte") return element("play").replaceWith("There is no game here: a token of this model is a byte, not a character.");
  if (!passages.length) return element("play").replaceWith("There is no game here: no passage was found that the model could be asked to guess.");
  element("how").open = !matchMedia("(max-width: 60rem)").matches;
  element("to-game").hidden = false;
  rival = new GPT(config, size, weights);
  element("model-bars").append(...Array.from({ length: Math.min(MAX_GUESSES, size) }, () => makeRow("div")));
  const typed = element("typed"), touch = matchMedia("(pointer: coarse)").matches;
  const readGuess = ({ isComposing }) => {
    if (isComposing && !touch) return; // a dead key waits for its letter, but a phone's keyboard composes every letter
    const [letter] = typed.value;
    typed.value = "";
    guess(letter);
  };
  typed.oninput = readGuess;
  typed.addEventListener("compositionend", () => readGuess({}));
  typed.onkeydown = (event) => {
    if (event.repeat) event.preventDefault(); // a key that is held down is one guess
    if (event.key !== "Escape" || event.isComposing) return;
    event.stopPropagation();
    if (!event.repeat) element("reveal").click();
  };
  const actions = {
    space: () => guess(" "), enter: () => guess("\n"), tab: () => guess("\t"), reveal: () => settle(MAX_GUESSES + 1, "Shown"),
    finish: () => { [over, tried] = [true, []]; showGame(""); }, again: nextRound,
    copy: () => { // works without a permission, and on a page that was opened from the disk
      getSelection().selectAllChildren(element("meaning"));
      if (document.execCommand("copy")) element("copy").textContent = "Copied";
    },
  };
  for (const id in actions) element(id).onclick = () => {
    actions[id]();
    if (!over) typed.focus({ preventScroll: true });
  };
  element("passage").onclick = () => typed.focus({ preventScroll: true });
  element("tab").hidden = !tokenizer.tokens.has("\t"); // a button, because the Tab key moves the focus
  nextRound();
}
