/* The chart of losses by step, and the card with details about what the pointer or the keyboard selects. */

const card = element("card");
const stepName = (step) => `step ${step.toLocaleString("en")}`;

/** Call `close` when the mouse or the focus leaves an element, on a tap elsewhere, and on Escape. */
function onLeave(node, close) {
  node.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") close(); });
  addEventListener("pointerdown", (event) => { if (!node.contains(event.target)) close(); }, { capture: true });
  node.addEventListener("blur", close);
  node.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
}

/** Show the card next to a rectangle of the screen. */
function showCard(box, ...content) {
  card.replaceChildren(...content);
  card.hidden = false;
  placeCard(card, box);
}

/** Return about `count` round numbers between two limits. */
function ticks(from, to, count) {
  const least = (to - from) / count || 1, power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= least * 0.999), numbers = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i++) numbers.push(i * step || 0);
  return numbers;
}

/** Draw losses by step. Each line in `all` has a `name`, `entries`, which are [step, nats], and a `style`, train or
    validation; validation adds a dot for each entry. `best` is the entry with a ring, or undefined. The card lists the
    nearest entry of each line. */
function curves(all, best, unit) {
  const lines = all.filter(({ entries }) => entries.length), validated = lines.filter(({ style }) => style === "validation");
  const plot = element("plot"), points = lines.flatMap(({ entries }) => entries), SIZE = 1000;
  const inNats = (loss) => `${loss.toFixed(4)} nats`, toBits = (loss) => loss / Math.LN2;
  const steps = points.map(([step]) => step), last = Math.max(...steps);
  const low = Math.min(...points.map(([, loss]) => loss)), high = Math.max(...points.map(([, loss]) => loss));
  plot.setAttribute("aria-label", `Losses by step, from ${inNats(high)} to ${inNats(low)}, up to step ${
    last}; the arrow keys select a point`);

  function add(parent, ...parts) {
    const node = makeSvg(...parts);
    parent.append(node);
    return node;
  }

  /** Give an element the colour of a line. */
  const paint = (node, { style }) => node.style.setProperty("--second", style === "train" ? "var(--accent)" : "");

  let cursorLine, cursorDots, x, y, selected = -1;
  function draw() {
    const log = document.querySelector("[name=steps]:checked").value === "log";
    const margin = (high - low) * 0.07 || 0.1, top = high + margin, bottom = Math.max(0, low - margin);
    const scaled = log ? (step) => Math.log(Math.max(1, step)) : (step) => step;
    const from = log ? scaled(Math.min(...steps)) : 0, to = scaled(last);
    const width = (to - from) * 1.012 || 1; // leaves room for the dot of the last point
    x = (step) => (SIZE * (scaled(step) - from)) / width;
    y = (loss) => (SIZE * (top - loss)) / (top - bottom);
    const svg = makeSvg("svg", {});
    const field = add(svg, "svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, preserveAspectRatio: "none", width: "100%", height: "100%" });
    const inPercent = (coordinate) => `${coordinate / (SIZE / 100)}%`;
    const levels = ticks(bottom, top, 5), digits = Math.max(1, Math.ceil(-Math.log10(levels[1] - levels[0]) - 1e-9));
    for (const level of levels) {
      add(field, "line", { class: "grid", x1: 0, x2: SIZE, y1: y(level), y2: y(level) });
      const height = { y: inPercent(y(level)), dy: "0.35em" };
      add(svg, "text", { ...height, class: "nats", x: "0", dx: -8, "text-anchor": "end" }, level.toFixed(digits));
      add(svg, "text", { ...height, class: "bits", x: "100%", dx: 8 }, toBits(level).toFixed(digits + 1));
    }
    add(svg, "text", { x: "0", dx: -36, y: "0", dy: -10 }, `nats per ${unit}`);
    add(svg, "text", { x: "100%", dx: 38, y: "0", dy: -10, "text-anchor": "end" }, `bits per ${unit}`);
    const decades = [...Array(12).keys()].flatMap((k) => (to - from < 5.5 ? [1, 2, 5] : [1]).map((m) => m * 10 ** k));
    const marks = log ? decades.filter((step) => scaled(step) >= from && step <= last) : ticks(0, last, 6);
    for (const step of marks.filter(Number.isInteger)) {
      add(field, "line", { class: "grid", x1: x(step), x2: x(step), y1: 0, y2: SIZE });
      add(svg, "text", { class: "steps", x: inPercent(x(step)), y: "100%", dy: "1.5em", "text-anchor": "middle" }, step.toLocaleString("en"));
    }
    add(svg, "text", { x: "50%", y: "100%", dy: "2.9em", "text-anchor": "middle" }, "steps");
    const path = (line, name, d) => paint(add(field, "path", { class: name, d }), line);
    for (const line of lines) path(line, line.style, line.entries.map((entry, i) => (i ? "L" : "M") + coordinates(entry)).join(""));
    if (best) for (const name of ["ring", "hole"]) path({}, name, dots([best]));
    for (const line of validated) path(line, "dots", dots(line.entries));
    if (validated.length === 1 && validated[0].entries.length === 1) {
      const [[step, loss]] = validated[0].entries, place = { x: inPercent(x(step)), y: inPercent(y(loss)), dx: -12, dy: "0.35em" };
      add(svg, "text", { ...place, class: "only", "text-anchor": "end" }, `validation ${loss.toFixed(4)}`);
    }
    cursorLine = add(field, "line", { class: "here", y1: 0, y2: SIZE, visibility: "hidden" });
    cursorDots = add(field, "path", { class: "now", d: "" });
    plot.replaceChildren(svg);
    close();
  }
  const coordinates = ([step, loss]) => `${x(step).toFixed(2)} ${y(loss).toFixed(2)}`;
  const dots = (entries) => entries.map((entry) => `M${coordinates(entry)}h0`).join(""); // lines without length: round dots

  const selectable = lines.reduce((a, b) => (b.entries.length > a.entries.length ? b : a)).entries;
  function select(i) {
    selected = i;
    const [step] = selectable[i], at = x(step), distance = (entry) => Math.abs(entry[0] - step);
    const nearest = lines.map(({ entries }) => entries.reduce((a, b) => (distance(b) < distance(a) ? b : a)));
    for (const end of ["x1", "x2"]) cursorLine.setAttribute(end, at);
    cursorLine.setAttribute("visibility", "visible");
    cursorDots.setAttribute("d", dots(nearest));
    const table = make("table");
    nearest.forEach(([entryStep, loss], n) => {
      const name = entryStep === step ? lines[n].name : `${lines[n].name}, ${stepName(entryStep)}`;
      const row = tableRow("td", name, inNats(loss), `(${toBits(loss).toFixed(4)} bits)`);
      paint(row, lines[n]);
      table.append(row);
    });
    const box = plot.firstChild.getBoundingClientRect(), left = box.left + (at / SIZE) * box.width;
    showCard({ left: left + 36, top: box.top, bottom: box.top + box.height * 0.1 }, make("b", "", stepName(step)), table);
  }
  function close() {
    if (selected < 0) return; // the card may be showing a character of the passage
    selected = -1;
    card.hidden = true;
    cursorLine.setAttribute("visibility", "hidden");
    cursorDots.setAttribute("d", "");
  }
  plot.onpointermove = plot.onpointerdown = (event) => {
    const box = plot.firstChild.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * SIZE;
    const distances = selectable.map(([step]) => Math.abs(x(step) - at));
    select(distances.indexOf(Math.min(...distances)));
  };
  onLeave(plot, close);
  onArrow(plot, (right) => right !== 0 && select(selected < 0 ? selectable.length - 1 : clamp(selected + right, 0, selectable.length - 1)));
  for (const input of document.querySelectorAll("[name=steps]")) input.addEventListener("change", draw);
  draw();
}
