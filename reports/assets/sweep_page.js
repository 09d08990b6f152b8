const data = JSON.parse(element("data").textContent);

/** Return the colour with a number. Runs that differ only in the seed have the same number. */
const colour = (number) => {
  const hue = ((360 * number) / data.colours + 40).toFixed(0);
  return `light-dark(oklch(.52 .15 ${hue}), oklch(.8 .12 ${hue}))`;
};

const lines = data.runs.map(([name, entries, number]) => ({ name, entries, style: "validation", colour: colour(number) }));
if (lines.some(({ entries }) => entries.length)) curves(lines, null, data.unit);
else element("plot").textContent = "No run has a validation loss.";
for (const row of document.querySelectorAll("#tables [data-colour]")) row.style.setProperty("--second", colour(row.dataset.colour));
document.body.dataset.ready = "";
