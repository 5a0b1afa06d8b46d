"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SIGNS = {
  "same": "=", "other way": "≈", "answer differs": "≠", "other calls": "±", "refused": "⊘", "would ask": "?",
  "error": "✗", "not comparable": "–",
};

/** Make an element with text or children; texts are never read as markup. */
function make(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "class") made.className = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((each) => each !== null && each !== undefined).map((each) => each));
  return made;
}

const media = matchMedia("(prefers-color-scheme: dark)");
const paint = () => { document.documentElement.dataset.theme = media.matches ? "dark" : "light"; };
media.addEventListener("change", paint);
paint();

function list(texts, type = "") {
  return make("ul", { class: "plain" }, ...texts.map((text) => make("li", type ? { class: type } : {}, text)));
}

function pair(row, name) {
  const [before, after] = [row.before, row.after].map((side) => side && side[name]);
  const show = (value) => (value === null || value === undefined ? "–" : String(value));
  return show(before) === show(after) ? show(before) : `${show(before)} → ${show(after)}`;
}

function titled(row) {
  return row.repeat ? `${row.name} #${row.repeat + 1}` : row.name;
}

function summarize() {
  const parts = [["runs", data.sums.runs], ...Object.entries(data.sums.verdicts)];
  for (const name of ["turns", "tokens", "cost", "seconds"]) {
    const [before, after] = data.sums[name];
    if (before !== null && before !== undefined) parts.push([name, `${before} → ${after}`]);
  }
  for (const [name, [mean, half]] of Object.entries(data.sums.scores || {})) parts.push([name, `${mean} ± ${half}`]);
  $("summary").append(...parts.map(([name, value]) => make("li", {}, `${name} `, make("b", {}, String(value)))));
}

function side(title, steps, differs, bars) {
  const items = steps.map(([turn, kind, text, depth], index) => {
    const isFirst = index === differs;
    const item = make("li", isFirst ? { class: "first" } : {}, make("span", { class: "kind" }, `${turn} ${kind}`), text);
    item.style.marginLeft = `${depth * 14}px`;
    if (isFirst) item.prepend(make("span", { class: "heard" }, "First difference: "));
    return item;
  });
  if (differs !== null && differs >= steps.length) {
    items.push(make("li", { class: "first" }, make("span", { class: "kind" }, "nothing more")));
  }
  return make("section", {}, make("h2", {}, title), make("ol", { class: "steps" }, ...items), timeline(bars));
}

function timeline(bars) {
  const whole = Math.max(...bars.map((bar) => bar[4]), 0.001);
  const rows = bars.map(([kind, name, depth, start, end]) => {
    const mark = make("i", { class: kind });
    mark.style.left = `${(100 * start) / whole}%`;
    mark.style.width = `${(100 * (end - start)) / whole}%`;
    const label = make("span", {}, name);
    label.style.paddingLeft = `${depth * 8}px`;
    return make("div", { class: "bar" }, label, make("span", { class: "track" }, mark),
      make("span", {}, `${(end - start).toFixed(2)} s`));
  });
  return make("div", { class: "bars" }, ...rows);
}

function details(entry) {
  const titles = ["Recorded", "In the lab"];
  const sides = entry.steps.map((steps, index) => side(titles[index], steps, entry.differs, entry.bars[index]));
  const cell = make("td", { colspan: "9" }, entry.input ? make("p", {}, `Input: ${entry.input}`) : null,
    make("div", { class: "sides" }, ...sides));
  return make("tr", { class: "more" }, cell);
}

function lineOf(entry, index) {
  const { row } = entry;
  const opener = make("button", { type: "button", "aria-expanded": "false" }, titled(row));
  const kind = row.verdict.replaceAll(" ", "-");
  const verdict = make("span", { class: `verdict v-${kind}`, "data-sign": SIGNS[row.verdict] || "" }, row.verdict);
  const checks = Object.entries(row.checks || {});
  const wrong = checks.filter(([, text]) => text !== null).map(([name, text]) => `✗ ${name}: ${text}`);
  const scores = Object.entries(row.scores || {}).map(([name, one]) => `${name}: ${one.value} ${one.reason}`);
  const why = [...(row.why || []), ...(row.saw || []).map((text) => `the model saw other parts, ${text}`), ...(row.notes || [])];
  const line = make("tr", { id: `run-${index}` },
    make("th", { scope: "row" }, opener),
    make("td", {}, verdict),
    make("td", { class: "why" }, list(why)),
    ...["turns", "tokens", "cost", "seconds"].map((name) => make("td", { class: "figure" }, pair(row, name))),
    make("td", {}, wrong.length ? list(wrong, "wrong") : checks.length ? `✓ ${checks.length}` : ""),
    make("td", {}, list(scores)));
  let shown = null;
  opener.addEventListener("click", () => {
    if (shown) { shown.remove(); shown = null; } else { shown = details(entry); line.after(shown); }
    opener.setAttribute("aria-expanded", String(Boolean(shown)));
  });
  entry.hide = (hidden) => { line.hidden = hidden; if (shown) shown.hidden = hidden; };
  entry.text = JSON.stringify([row, entry.input]).toLowerCase();
  return line;
}

function filter() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const entry of data.rows) {
    const fails = Object.values(entry.row.checks || {}).some((text) => text !== null);
    const fits = words.every((word) => entry.text.includes(word))
      && (!$("verdict").value || entry.row.verdict === $("verdict").value) && (!$("failing").checked || fails);
    entry.hide(!fits);
    count += fits;
  }
  $("found").textContent = `${count} of ${data.rows.length} runs`;
}

summarize();
$("rows").append(...data.rows.map(lineOf));
$("verdict").append(...Object.keys(data.sums.verdicts).map((name) => make("option", { value: name }, name)));
for (const id of ["search", "verdict", "failing"]) $(id).addEventListener("input", filter);
$("filters").addEventListener("submit", (event) => event.preventDefault());
filter();
document.documentElement.dataset.ready = "true";
