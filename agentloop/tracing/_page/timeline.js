// The page of a timeline. Rows are drawn only where they are seen, so that ten thousand records open at once.
//
// State: `model` as the server or the file gave it; `only`, the rows that are asked for, and `kept`, these with the rows
// above them (null: all); `order`, the positions of the rows that are not folded away; `view`, the stretch of the axis that
// is seen; the chosen row, and the rows that the search has found. Every change ends in
// `draw`, which makes the elements of the rows in sight and moves those that exist. Texts reach the page as text alone.
"use strict";
const $ = (id) => document.getElementById(id);
const HEIGHT = 26, SVG = "http://www.w3.org/2000/svg", MOST_ARROWS = 400, BEYOND = 12, LABEL = 66, SLOWEST = 20;
const TONES = {
  succeeded: "good", completed: "good", replayed: "good", answered: "model", failed: "bad", timed_out: "late",
  cancelled: "off", rejected: "no", tripped: "bad", passed: "guard", interrupted: "verdict", stopped: "late",
  skipped: "idle", unknown: "late", handed_over: "model", ignored: "idle", open: "idle", never: "idle",
};
const KEYS = [
  ["↑ ↓", "next row, also Page and Home, End"], ["→ ←", "unfold, fold; to the row below, above"], ["Enter", "details of the row"],
  ["+ −", "zoom, also Ctrl and wheel"], ["a d", "earlier, later, also Shift and wheel"], ["f", "zoom to the row"],
  ["0", "the whole run"], ["v", "zoom to the rows in sight"], ["c", "to the call that cancelled this one"], ["/", "search"], ["Esc", "close the details"],
];
let model = JSON.parse($("data").textContent);
// `across` is the width of the time column, measured once for each drawing: asking for it after a change makes the browser
// lay out the page.
let across = 600;
let only = "all", kept = null, order = [], places = [], folded = new Set(), axis, view = null, chosen = 0, matches = [], query = "", seen = new Map();

// -- elements

function el(tag, fields, ...children) {
  const made = tag === "svg" || tag === "use" || tag === "path" || tag === "circle"
    ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(fields || {}))
    if (name === "on") for (const [kind, act] of Object.entries(value)) made.addEventListener(kind, act);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  made.append(...children.filter((each) => each !== null && each !== undefined && each !== ""));
  return made;
}
const icon = (name) => el("svg", { class: "icon", "aria-hidden": "true" }, el("use", { href: `#${name}` }));
function place(made, left, width) {
  made.style.left = `${left}px`;
  if (width !== undefined) made.style.width = `${Math.max(width, 2)}px`;
  return made;
}
function format(seconds) {
  if (seconds < 0.0095) return `${(seconds * 1000).toFixed(seconds < 0.00095 && seconds > 0 ? 2 : 1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 129600 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} d`;
}
// The label of a moment: as fine as *step* asks for.
function moment(at, step) {
  if (at === 0) return "0";
  if (at + step < 1) return `${+(at * 1000).toFixed(step < 0.001 ? 3 : 0)} ms`;
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), two = (part, more = 0) => part.toFixed(more).padStart(more ? 3 + more : 2, "0");
  if (at < 60) return `${at.toFixed(digits)} s`;
  const all = Number(at.toFixed(digits)), hours = Math.floor(all / 3600), minutes = Math.floor(all % 3600 / 60);
  return `${hours ? `${hours}:${two(minutes)}` : minutes}:${two(all % 60, digits)}`;
}
const clock = (at) => new Date((model.start + at) * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
// How a row ended: a status that has a sign of its own, whatever word a guardrail used.
function statusOf(row) {
  const last = row.en.length ? row.en[row.en.length - 1].s : "";
  if (row.o || !last) return row.k === "call" && !row.ph.length && !last ? "never" : row.k === "turn" && !row.o ? "" : "open";
  if (row.k === "guardrail") return ["passed", "Allow", "Rewrite"].includes(last) ? "passed" : "tripped";
  return document.getElementById(`status-${last}`) ? last : "answered";
}

// -- the axis: worked time, each gap between run segments as wide as the others

function makeAxis() {
  let before = 0, paused = 0;
  const gaps = model.gaps.map(([start, end, crashed]) => {
    const from = Math.max(start, before);
    before = Math.max(end, from);
    paused += before - from;
    return { from, to: before, crashed };
  });
  const worked = Math.max(model.end - paused, 1e-6), share = gaps.length ? Math.min(worked * 0.035, worked * 0.4 / gaps.length) : 0;
  const forward = (at) => {
    let found = at;
    for (const { from, to } of gaps) {
      if (at <= from) break;
      const inside = Math.min(at, to) - from;
      found += -inside + (to > from ? share * inside / (to - from) : share);
    }
    return found;
  };
  const back = (unit) => {
    let left = unit, last = 0;
    for (const { from, to } of gaps) {
      const until = from - last;
      if (left <= until) return last + left;
      left -= until;
      if (left < share) return from + (to - from) * left / share;
      left -= share;
      last = to;
    }
    return last + left;
  };
  // The place of a worked time, which ruler lines have.
  const ofWorked = (seconds) => {
    let left = seconds, last = 0, unit = 0;
    for (const { from, to } of gaps) {
      if (left < from - last) break;
      left -= from - last;
      unit += from - last + share;
      last = to;
    }
    return unit + left;
  };
  return { gaps, worked, forward, back, ofWorked, total: Math.max(worked + share * gaps.length, 1e-6) };
}
const x = (at) => (axis.forward(at) - view.from) / (view.to - view.from) * across;
const isWhole = () => !view || (view.from <= 0 && view.to >= axis.total - 1e-12);
function look(from, to) {
  const least = Math.max(axis.total * 1e-6, 1e-6), long = Math.min(Math.max(to - from, least), axis.total * 1.02);
  const start = Math.min(Math.max(from, -axis.total * 0.01), axis.total * 1.01 - long);
  view = { from: start, to: start + long };
  draw();
}
const wholeView = () => look(0, axis.total * 1.02);
function zoom(factor, at) {
  const middle = at === undefined ? (view.from + view.to) / 2 : at;
  look(middle - (middle - view.from) * factor, middle + (view.to - middle) * factor);
}
const pan = (part) => look(view.from + (view.to - view.from) * part, view.to + (view.to - view.from) * part);

// -- rows in sight

function arrange() {
  order = [];
  places = new Array(model.rows.length).fill(-1);
  let hidden = Infinity;
  model.rows.forEach((row, index) => {
    if (kept ? !kept.has(index) : row.d > hidden) return;
    hidden = folded.has(index) ? row.d : Infinity;
    places[index] = order.length;
    order.push(index);
  });
  const height = `${order.length * HEIGHT}px`;
  for (const id of ["content", "backdrop", "arrows", "cursor"]) $(id).style.height = height;
  $("grid").setAttribute("aria-rowcount", order.length + 1);
}
const hasChildren = (index) => index + 1 < model.rows.length && model.rows[index + 1].d > model.rows[index].d;
function shownAbove(index) {
  while (places[index] < 0) index = model.rows[index].p;
  return index;
}
function makeRow(index) {
  const row = model.rows[index], status = statusOf(row), unfolds = !kept && hasChildren(index);
  const made = el("div", {
    role: "row", class: `row kind-${row.k} tone-${TONES[status] || "idle"}`, "data-row": index, "data-kind": row.k,
    "data-status": row.en.length ? row.en[row.en.length - 1].s : null, "aria-level": row.d + 1, tabindex: -1,
  });
  const indent = el("span", { role: "gridcell", class: "name" });
  indent.style.paddingLeft = `${4 + Math.min(row.d, 12) * 13}px`;
  indent.append(el("span", { class: "fold", "aria-hidden": "true" }, unfolds ? (folded.has(index) ? "▸" : "▾") : ""));
  if (row.k !== "run" && row.k !== "turn") indent.append(el("span", { class: "of" }, row.k === "call" ? "" : `${model.words.kinds[row.k]} `));
  indent.append(row.n);
  if (row.a) indent.append(el("span", { class: "args" }, ` ${row.a}`));
  indent.title = row.a ? `${row.n} ${row.a}` : row.n;
  made.append(indent, makeOutcome(row, status), el("span", { role: "gridcell", class: "time", "aria-label": sayTimes(row) }));
  if (unfolds) made.setAttribute("aria-expanded", String(!folded.has(index)));
  return made;
}
function makeOutcome(row, status) {
  const last = row.en[row.en.length - 1], cell = el("span", { role: "gridcell", class: "outcome" });
  if (status) cell.append(icon(`status-${status}`), " ", el("span", { class: "status" }, labelOf(row, status)));
  if (last && last.by) {
    const words = model.words.causes[last.by];
    cell.append(" ", el("span", { class: "chip", "data-cause": last.by, title: words }, icon(`cause-${last.by}`), ` ${last.who || words}`));
  }
  const verdict = row.m.findLast(([kind]) => kind === "approved" || kind === "rejected");
  if (verdict) cell.append(" ", el("span", { class: "chip verdict", "data-verdict": verdict[0] }, icon("verdict"), ` ${verdict[2]}`));
  const more = [row.k === "model" || row.k === "turn" ? row.u : "", last && last.m].filter(Boolean).join(" · ");
  if (more) cell.append(" ", more);
  cell.title = [last && last.w, ...row.u ? [row.u] : []].filter(Boolean).join("\n");
  return cell;
}
function labelOf(row, status) {
  if (status === "open") return openWords(row);
  if (status === "never") return model.words.never;
  const last = row.en[row.en.length - 1].s;
  return model.words.statuses[last] || last;
}
const openWords = (row) => model.words[row.k === "call" && row.ph.some(([kind, , , open]) => kind === "approval" && open) ? "waits" : "open"];
const sayTimes = (row) => [
  `from ${format(row.s)}`, ...row.ph.map(([kind, from, to, open, note]) =>
    `${model.words.phases[kind]} ${format(to - from)}${open && kind !== "approval" ? `, ${model.words.open}` : ""}${note ? ` (${note})` : ""}`),
  ...row.m.map(([, , note]) => note),
].join(", ");

function drawBars(made, row, full) {
  const cell = made.lastElementChild, status = statusOf(row), parts = [];
  const turn = turnAround(row);
  if (turn) for (const [, from, to] of turn.ph)
    parts.push(place(el("div", { class: `band ${turn.t % 2 ? "" : "other"}` }), x(from), x(to) - x(from)));
  let last = x(row.s);
  for (const [kind, from, to, open, note] of row.ph) {
    const left = x(from), right = x(to);
    last = Math.max(last, right, left + 2);
    if (right < -4 || left > full + 4) continue;
    const from_ = Math.max(left, -6);
    parts.push(place(el("div", { class: open ? "bar open" : "bar", "data-phase": kind,
      title: `${model.words.phases[kind]} ${format(to - from)}${note ? `: ${note}` : ""}` }), from_, Math.min(right, full + 6) - from_));
  }
  for (const [kind, at, note] of row.m) {
    const left = x(at);
    if (left >= -2 && left <= full + 2) parts.push(place(el("div", { class: "mark", "data-mark": kind, title: note }), left));
  }
  row.en.forEach((ending, number) => {
    const left = x(ending.at), sign = number === row.en.length - 1 ? status : (TONES[ending.s] ? ending.s : "");
    if (sign && sign !== "open" && left > -10 && left < full + 10 && row.k !== "run" && !(row.k === "model" && ending.s === "answered"))
      parts.push(place(el("div", { class: "end", "data-ending": ending.s, title: ending.w }, icon(`status-${sign}`)), Math.min(left, full - 8)));
    last = Math.max(last, left);
  });
  if (row.en.some((ending) => ending.by === "tool")) last += 30;
  if (row.ph.length && row.p !== null && last > 0 && x(row.s) < full) {
    const inside = last > full - 70;
    parts.push(place(el("span", { class: inside ? (x(row.s) > 80 ? "took before" : "took inside") : "took" }, format(row.e - row.s)),
      inside ? (x(row.s) > 80 ? x(row.s) : Math.min(last, full)) : last));
  }
  cell.replaceChildren(...parts);
}
function turnAround(row) {
  for (let each = row; each; each = each.p === null ? null : model.rows[each.p]) if (each.k === "turn") return each;
  return null;
}

// -- drawing

let asked = false;
function draw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; drawNow(); });
}
function drawNow() {
  if (!model.rows.length) return;
  const box = $("scroller"), full = across = Math.max($("head-row").lastElementChild.clientWidth, 50);
  const first = Math.max(Math.floor(box.scrollTop / HEIGHT) - BEYOND, 0);
  const after = Math.min(Math.ceil((box.scrollTop + box.clientHeight) / HEIGHT) + BEYOND, order.length);
  const wanted = new Set(order.slice(first, after));
  if (places[chosen] >= 0) wanted.add(chosen);
  for (const [index, made] of seen) if (!wanted.has(index)) { made.remove(); seen.delete(index); }
  const found = new Set(matches);
  const content = $("content");
  let next = content.firstElementChild; // rows are in order in the page too, for those who hear it
  for (const index of [...wanted].sort((one, other) => one - other)) {
    let made = seen.get(index);
    if (made) next = made.nextElementSibling;
    else content.insertBefore(made = makeRow(index), next);
    seen.set(index, made);
    made.style.top = `${places[index] * HEIGHT}px`;
    made.setAttribute("aria-rowindex", places[index] + 2);
    made.setAttribute("aria-selected", String(index === chosen));
    made.tabIndex = index === chosen ? 0 : -1;
    made.classList.toggle("match", found.has(index));
    
    drawBars(made, model.rows[index], full);
  }
  drawRuler(full);
  drawArrows(first, after, full);
  drawBrush();
  drawNowLine();
}
function drawRuler(full) {
  const rough = (view.to - view.from) / Math.max(full / 110, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const labels = [], lines = [];
  const firstWorked = Math.max(0, Math.floor((view.from - (axis.total - axis.worked)) / step)) * step;
  const pauses = [], isFree = (left) => pauses.every((other) => Math.abs(left - other) > LABEL);
  for (const { from, to, crashed } of axis.gaps) {
    const left = x(from), right = x(to);
    if (right < 0 || left > full) continue;
    lines.push(place(el("div", { class: "gap" }), left, right - left));
    if (!isFree(left)) continue;
    pauses.push(left);
    labels.push(place(el("span", { class: "paused", title: `paused until ${clock(to)}` }, `${crashed ? "died, " : "‖ "}${format(to - from)}`), left));
  }
  for (let at = firstWorked; at <= axis.worked + step && lines.length < 90; at += step) {
    const unit = axis.ofWorked(at), left = (unit - view.from) / (view.to - view.from) * full;
    if (left < -60 || left > full) continue;
    if (isFree(left)) labels.push(place(el("span", {}, moment(at, step)), left));
    lines.push(place(el("div", { class: "tick" }), left));
  }
  $("ruler").replaceChildren(...labels);
  $("backdrop").replaceChildren(...lines);
}
function drawArrows(first, after, full) {
  const parts = [];
  for (const [source, target, at, cause] of model.arrows) {
    if (parts.length > MOST_ARROWS) break;
    const one = shownAbove(source), other = shownAbove(target);
    const low = Math.min(places[one], places[other]), high = Math.max(places[one], places[other]), left = x(at);
    if (high < first || low >= after || left < -30 || left > full + 30 || (one === other && source !== target)) continue;
    const middle = (index) => places[index] * HEIGHT + HEIGHT / 2;
    const from = middle(one) + (source === target ? -6 : Math.sign(middle(other) - middle(one)) * 6);
    const to = middle(other) + (source === target ? 6 : Math.sign(middle(one) - middle(other)) * 8);
    const bend = source === target ? 26 : 0;
    const shape = bend ? `M${left} ${from}C${left + bend} ${from - 4} ${left + bend} ${to + 4} ${left} ${to}` : `M${left} ${from}L${left} ${to}`;
    parts.push(el("path", { class: "halo", d: shape }));
    parts.push(el("path", { class: cause, d: shape, "marker-end": "url(#head)", "data-cause": cause, "data-source": source, "data-target": target }));
    // The sign of the cause, beside the line so that it covers no ending.
    const signX = left + (bend ? bend - 4 : -13), signY = bend ? middle(one) : from + Math.sign(to - from) * 7;
    parts.push(el("circle", { cx: signX, cy: signY, r: 8 }),
      el("svg", { x: signX - 6, y: signY - 6, width: 12, height: 12 }, el("use", { href: `#cause-${cause}` })));
  }
  $("arrows").replaceChildren(...parts);
}
function drawOverview() {
  const box = $("overview"), canvas = box.firstElementChild, pen = canvas.getContext("2d");
  canvas.width = box.clientWidth; canvas.height = box.clientHeight;
  const style = getComputedStyle(document.documentElement), tone = (name) => style.getPropertyValue(`--${name}`).trim();
  const rows = model.rows.length, scale = canvas.width / (axis.total * 1.02), tall = Math.max(canvas.height / Math.max(rows, 1), 1);
  model.rows.forEach((row, index) => {
    if (row.k === "run" || row.k === "turn") return;
    pen.fillStyle = tone(row.k === "model" ? "model" : TONES[statusOf(row)] || "idle");
    for (const [kind, from, to] of row.ph) {
      if (kind === "approval" || kind === "queue") continue;
      pen.fillRect(axis.forward(from) * scale, index / rows * canvas.height, Math.max((axis.forward(to) - axis.forward(from)) * scale, 1), tall);
    }
  });
  pen.fillStyle = tone("gap");
  for (const { from, to } of axis.gaps) pen.fillRect(axis.forward(from) * scale, 0, (axis.forward(to) - axis.forward(from)) * scale, canvas.height);
}
function drawBrush() {
  const brush = $("overview").lastElementChild, scale = 100 / (axis.total * 1.02);
  brush.style.left = `${Math.max(view.from * scale, 0)}%`;
  brush.style.width = `${Math.min((view.to - Math.max(view.from, 0)) * scale, 100)}%`;
}

// -- choosing and folding

function reveal(index) {
  if (kept && !kept.has(index)) show("all");
  for (let each = model.rows[index].p; each !== null; each = model.rows[each].p) folded.delete(each);
  if (places[index] < 0) refold();
  const box = $("scroller"), top = places[index] * HEIGHT;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + HEIGHT > box.scrollTop + box.clientHeight) box.scrollTop = top + HEIGHT * 2 - box.clientHeight;
}
function refold() { arrange(); for (const made of seen.values()) made.remove(); seen.clear(); draw(); }
function choose(index, focus = true) {
  chosen = index;
  reveal(index);
  drawNow();
  if (focus) seen.get(index).focus({ preventScroll: true });
  if (!$("details").hidden) showDetails();
}
function toggle(index, open) {
  if (kept || !hasChildren(index) || open === !folded.has(index)) return false;
  folded.has(index) ? folded.delete(index) : folded.add(index);
  refold(); drawNow();
  return true;
}
function foldRuns() {
  folded = new Set();
  model.rows.forEach((row, index) => { if (row.k === "run" && row.p !== null) folded.add(row.p); });
}

// -- details

function showDetails() {
  const row = model.rows[chosen], status = statusOf(row), list = el("dl");
  const add = (name, ...content) => list.append(el("dt", {}, name), el("dd", {}, ...content));
  add("kind", model.words.kinds[row.k]);
  if (status) add("outcome", el("span", { class: `pill tone-${TONES[status] || "idle"}` }, icon(`status-${status}`), ` ${labelOf(row, status)}`));
  if (row.en.length) add("endings", row.en.map((each) => `${clock(each.at)}: ${each.w}`).join("\n"));
  const buttons = (found) => found.map((index) => el("button", { type: "button", on: { click: () => choose(index) } }, model.rows[index].n));
  const by = model.arrows.filter(([, target]) => target === chosen), of = model.arrows.filter(([source]) => source === chosen);
  if (by.length) add("cancelled by", ...buttons([...new Set(by.map(([source]) => source))]), by.map(([, , , cause]) => model.words.causes[cause]).join(", "));
  if (of.length) add("cancelled", ...buttons([...new Set(of.map(([, target]) => target))]));
  add("began", clock(row.s));
  add("took", format(row.e - row.s) + (row.o ? `, ${openWords(row)}` : ""));
  if (row.ph.length) add("phases", el("table", {}, el("tbody", {}, ...row.ph.map(([kind, from, to, open, note]) => el("tr", {},
    el("th", { scope: "row" }, model.words.phases[kind]), el("td", {}, `at ${format(from)}`), el("td", {}, format(to - from) + (open ? " …" : "")), el("td", {}, note))))));
  if (row.m.length) add("marks", row.m.map(([, at, note]) => `at ${format(at)}: ${note}`).join("\n"));
  if (row.u) add("used", row.u);
  if (row.i) add("call id", row.i);
  for (const [name, text] of row.f) add(name, text);
  $("details").replaceChildren(el("button", { type: "button", class: "close", on: { click: closeDetails } }, "Close"), el("h2", {}, row.n), list);
  const opens = $("details").hidden;
  $("details").hidden = false;
  if (opens) reveal(chosen); // the rows have less room now
  draw();
}
function closeDetails() { $("details").hidden = true; draw(); const made = seen.get(chosen); if (made) made.focus(); }

// -- only some rows

const FAILURES = new Set(["failed", "timed_out", "tripped", "unknown"]);
const isFailure = (row) => FAILURES.has(statusOf(row)) || row.ph.some(([kind]) => kind === "failed");
const isWork = (row) => row.k === "call" || row.k === "model" || row.k === "hosted";
function positionsOf(choice) {
  const all = model.rows.map((_row, index) => index);
  if (choice === "failures") return all.filter((index) => isFailure(model.rows[index]));
  if (choice === "found") return matches;
  if (choice === "slowest") return all.filter((index) => isWork(model.rows[index]))
    .sort((one, other) => model.rows[other].e - model.rows[other].s - model.rows[one].e + model.rows[one].s).slice(0, SLOWEST);
  return all.filter((index) => isWork(model.rows[index]) && `tool ${model.rows[index].n}` === choice);
}
function sift() {
  kept = null;
  if (only === "all") return;
  kept = new Set([0]);
  for (let index of positionsOf(only)) for (; index !== null && !kept.has(index); index = model.rows[index].p) kept.add(index);
}
function show(choice) {
  only = choice;
  $("only").value = choice;
  sift();
  refold();
  if (places[chosen] < 0) chosen = shownAbove(chosen);
}
function fillOnly() {
  const counts = new Map();
  for (const row of model.rows) if (row.k === "call" || row.k === "hosted") counts.set(row.n, (counts.get(row.n) || 0) + 1);
  const option = (value, words) => el("option", { value }, words);
  const tools = [...counts].sort(([one], [other]) => (one < other ? -1 : 1)).map(([name, count]) => option(`tool ${name}`, `${name} (${count})`));
  $("only").replaceChildren(option("all", "all rows"), option("failures", `failures (${positionsOf("failures").length})`), option("slowest", `the ${SLOWEST} slowest`),
    option("found", "what the search finds"), ...tools.length ? [el("optgroup", { label: "Calls of" }, ...tools)] : []);
  $("only").value = only;
  if (!$("only").value) only = $("only").value = "all";
}

// -- search

const textOf = (row) => row.text ??= [row.n, row.a, row.i, labelOfRow(row), row.u, ...row.en.map((each) => each.w), ...row.f.flat(),
  ...row.ph.map(([kind, , , , note]) => `${model.words.phases[kind]} ${note}`)].join(" ").toLowerCase();
const labelOfRow = (row) => { const status = statusOf(row); return status ? labelOf(row, status) : ""; };
function search() {
  query = $("search").value.trim().toLowerCase();
  matches = query ? model.rows.flatMap((row, index) => (textOf(row).includes(query) ? [index] : [])) : [];
  sayFound();
  if (only === "found") show("found");
  draw();
}
function sayFound() {
  const at = matches.indexOf(chosen);
  $("found").textContent = query ? (at >= 0 ? `${at + 1} of ${matches.length}` : `${matches.length} found`) : "";
}
function jump(step) {
  if (!matches.length) return;
  const next = step > 0 ? matches.find((each) => each > chosen) : [...matches].reverse().find((each) => each < chosen);
  choose(next ?? (step > 0 ? matches[0] : matches[matches.length - 1]), false);
  sayFound();
}

// -- the state at a record
//
// `runs` are the runs under way after record `reached`, by path: the data has only what each record changes. Going on adds
// to them, going back begins again.

let reached = 0, runs = new Map();
function reach(n) {
  if (n < reached) { reached = 0; runs = new Map(); }
  for (; reached < n; reached++) {
    const [, , changed, gone] = model.moments.steps[reached];
    for (const path of gone) runs.delete(path);
    for (const [path, { history: [keep, added] = [], ...fields }] of Object.entries(changed)) {
      const run = runs.get(path) ?? { path, lines: [] };
      if (added) { run.lines.length = keep; run.lines.push(...added); }
      runs.set(path, Object.assign(run, fields));
    }
  }
}
const MOST_LINES = 200;
function describe(run, now, all) {
  const line = (at) => model.moments.lines[at], waits = [], spent = [`${run.turn} turns`, run.max_turns === null ? "no limit" : `of ${run.max_turns}`, `${run.tokens} tokens`];
  if (run.requested) waits.push("the model works on its request");
  for (const [id, tool, given, state, since] of run.calls.map((at) => model.moments.calls[at])) waits.push(`${id} ${tool} ${line(given)} ${state}, for ${format(Math.max(now - since, 0))}`);
  if (run.cost !== null) spent.push(`cost ${run.cost}`);
  const from = all ? 0 : Math.max(run.lines.length - MOST_LINES, 0), list = el("ol", { start: from + 1 }, ...run.lines.slice(from).map((at) => el("li", {}, line(at))));
  return [
    el("h2", {}, `${run.agent}${run.path ? ` (in the run of call ${run.path})` : ""}: turn ${run.turn}, ${run.status || "under way"}`),
    el("h3", {}, "What the model would be shown"),
    from ? el("button", { type: "button", on: { click: () => showState(true) } }, `Show the ${from} lines before`) : null, list,
    el("h3", {}, "What it may call"), el("p", {}, line(run.tools) || "nothing"),
    el("h3", {}, "What has not ended"), waits.length ? el("ul", {}, ...waits.map((words) => el("li", {}, words))) : el("p", {}, "nothing"),
    el("h3", {}, "Spent"), el("p", {}, spent.join(", ")),
  ].filter((each) => each);
}
function sayRecord() {
  const n = Number($("at").value), [name, at] = model.moments.steps[n - 1], words = `record ${n} of ${model.moments.steps.length}: ${name}`;
  $("at").setAttribute("aria-valuetext", words);
  $("record").textContent = `${words}, at ${format(at)}`;
  return [n, at];
}
function showState(all = false) {
  const [n, at] = sayRecord();
  reach(n);
  $("state").replaceChildren(...[...runs.values()].flatMap((run) => describe(run, at, all)));
  drawNowLine();
}
function drawNowLine() {
  const line = $("now"), open = model.moments && $("moments").open;
  const at = open ? x(model.moments.steps[Number($("at").value) - 1][1]) : -1;
  line.hidden = !(at >= 0 && at <= across);
  if (!line.hidden) line.style.left = `${$("head-row").lastElementChild.getBoundingClientRect().left - $("scroller").getBoundingClientRect().left + at}px`;
  if (!line.hidden) line.style.height = `${$("scroller").scrollHeight}px`;
}
// The slider has as many places as there are records. One that stood at the last stays at the last.
function fitMoments() {
  const slider = $("at"), count = model.moments?.steps.length ?? 0, before = slider.value, isLast = before === slider.max;
  $("moments").hidden = !count;
  if (!count) return;
  slider.max = count;
  if (isLast) slider.value = count;
  if ($("moments").open) { if (slider.value !== before) showState(); else sayRecord(); }
}
// What has come since, added to what was known; all of it if the journal is another one.
function grow(known, part) {
  if (!part) return known;
  if (!part.from) { known = { lines: [], calls: [], steps: [] }; reached = 0; runs = new Map(); }
  for (const [name, list] of Object.entries(known)) for (const one of part[name]) list.push(one);
  return known;
}
function beginMoments() {
  fitMoments();
  const step = (by) => { $("at").value = Number($("at").value) + by; showState(); };
  $("at").addEventListener("input", () => showState());
  $("earlier").addEventListener("click", () => step(-1));
  $("later").addEventListener("click", () => step(1));
  $("moments").addEventListener("toggle", () => { if ($("moments").open) showState(); draw(); });
}

// -- keys and pointers

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const row = model.rows[chosen], at = Math.max(places[chosen], 0), page = Math.max(Math.floor($("scroller").clientHeight / HEIGHT) - 1, 1);
  const go = (place_) => choose(order[Math.min(Math.max(place_, 0), order.length - 1)]);
  const acts = {
    ArrowDown: () => go(at + 1), ArrowUp: () => go(at - 1), PageDown: () => go(at + page), PageUp: () => go(at - page),
    Home: () => go(0), End: () => go(order.length - 1), Enter: showDetails, " ": showDetails, f: () => frame(row),
    ArrowRight: () => { if (!toggle(chosen, true) && hasChildren(chosen)) go(at + 1); else focusChosen(); },
    ArrowLeft: () => { if (!toggle(chosen, false) && row.p !== null) choose(row.p); else focusChosen(); },
    c: () => { const found = model.arrows.find(([, target]) => target === chosen); if (found) choose(found[0]); },
  };
  if (acts[event.key]) { acts[event.key](); event.preventDefault(); }
}
const focusChosen = () => { const made = seen.get(chosen); if (made) made.focus({ preventScroll: true }); };
function frame(row) {
  const from = axis.forward(row.s), to = axis.forward(row.e), more = Math.max((to - from) * 0.1, axis.total * 1e-6);
  look(from - more, to + more);
}
function frameSight() {
  const box = $("scroller"), first = Math.ceil(box.scrollTop / HEIGHT), after = Math.floor((box.scrollTop + box.clientHeight) / HEIGHT);
  const rows = order.slice(first, after).map((index) => model.rows[index]).filter((row) => row.k !== "run");
  if (rows.length) frame({ s: Math.min(...rows.map((row) => row.s)), e: Math.max(...rows.map((row) => row.e)) });
}
function onPageKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
  const acts = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: wholeView, v: frameSight, a: () => pan(-0.25), d: () => pan(0.25),
    "/": () => $("search").focus(), Escape: () => { if (!$("details").hidden) closeDetails(); } };
  if (acts[event.key]) { acts[event.key](); event.preventDefault(); }
}
const unitAt = (event) => {
  const box = $("head-row").lastElementChild.getBoundingClientRect();
  return view.from + (event.clientX - box.left) / across * (view.to - view.from);
};
function onWheel(event) {
  if (event.ctrlKey) zoom(event.deltaY < 0 ? 0.8 : 1.25, unitAt(event));
  else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / 1200);
  else return;
  event.preventDefault();
}
function onMove(event) {
  const unit = unitAt(event), cursor = $("cursor"), box = $("scroller").getBoundingClientRect();
  cursor.hidden = unit < view.from || unit > view.to;
  if (cursor.hidden) return;
  cursor.style.left = `${event.clientX - box.left}px`;
  const at = axis.back(unit);
  cursor.firstElementChild.textContent = `${moment(Math.max(at, 0), (view.to - view.from) / 1000)} · ${clock(at)}`;
}
function drag(box, unitOf, done) {
  box.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    const start = unitOf(event), before = view, first = event.clientX;
    const move = (each) => { if (Math.abs(each.clientX - first) > 3) done(start, unitOf(each, before), before); };
    const up = () => { removeEventListener("pointermove", move); removeEventListener("pointerup", up); };
    addEventListener("pointermove", move);
    addEventListener("pointerup", up);
  });
}

// -- the page

function fillHead() {
  document.title = model.title;
  $("title").replaceChildren(model.title, el("small", { id: "run" }, model.run ? `run ${model.run}` : ""));
  const items = model.summary.map(([name, text]) => el("li", {}, name ? `${name} ` : "", el("b", {}, text)));
  if (model.status) items.unshift(el("li", { class: `pill tone-${TONES[model.status] || "idle"}` }, icon(`status-${model.status}`), ` ${model.words.statuses[model.status] || model.words.open}`));
  $("summary").replaceChildren(...items);
}
function fillLegend() {
  const part = (title, items) => el("div", {}, el("h2", {}, title), el("ul", {}, ...items));
  const sign = (name, words, tone) => el("li", {}, el("span", { class: `pill tone-${tone}` }, icon(name)), words);
  const bars = Object.entries(model.words.phases).map(([kind, words]) =>
    el("li", {}, el("span", { class: "swatch tone-good", "aria-hidden": "true" }, place(el("div", { class: "bar", "data-phase": kind }), 0, 44)), words));
  const own = Object.entries(model.words.statuses).map(([status, words]) => sign(`status-${status}`, words, TONES[status] || "idle"));
  const guards = [sign("status-passed", "guardrail: passed", "guard"), sign("status-tripped", "guardrail: refused", "bad"), sign("status-open", model.words.open, "idle"), sign("status-never", model.words.never, "idle")];
  const causes = Object.entries(model.words.causes).map(([cause, words]) => sign(`cause-${cause}`, `cancelled ${words}`, "off"));
  document.querySelector(".legend").replaceChildren(part("Bars", bars), part("Outcomes", own), part("Others", guards), part("Arrows lead from who cancelled to who was cancelled", causes),
    part("Keys", KEYS.map(([key, words]) => el("li", {}, el("kbd", {}, key), words))));
}
const THEMES = ["system", "light", "dark"], dark = matchMedia("(prefers-color-scheme: dark)");
let theme = 0;
function paint() {
  document.documentElement.dataset.theme = theme === 0 ? (dark.matches ? "dark" : "light") : THEMES[theme];
  $("theme").textContent = `Theme: ${THEMES[theme]}`;
  if (model.rows.length && axis) drawOverview();
}
function begin(keep) {
  axis = makeAxis();
  fillHead();
  const empty = !model.rows.length;
  $("grid").hidden = $("overview").hidden = empty;
  document.querySelector(".empty")?.remove();
  if (empty) { document.querySelector("main").prepend(el("p", { class: "empty" }, model.empty)); return; }
  fillOnly();
  sift();
  arrange();
  for (const made of seen.values()) made.remove();
  seen.clear();
  const focused = document.activeElement?.dataset?.row !== undefined;
  if (!keep || isWhole()) view = { from: 0, to: axis.total * 1.02 };
  drawNow();
  drawOverview();
  if (focused) focusChosen();
}
// What names a row for as long as it grows.
function keysOf(rows) {
  const keys = [];
  for (const row of rows) keys.push(`${row.p === null ? "" : keys[row.p]}/${row.k} ${row.k === "handoff" ? "" : row.n} ${row.t} ${row.i} ${row.s}`);
  return keys;
}
function follow() {
  const source = new EventSource("events"), say = (state, words) => { $("live").dataset.state = state; $("live").textContent = words; };
  say("live", "● live");
  source.addEventListener("change", (event) => {
    const change = JSON.parse(event.data), rows = model.rows.slice(0, change.count), known = keysOf(model.rows);
    const whole = !view || isWhole(), wasFolded = new Set([...folded].map((index) => known[index])), wasChosen = known[chosen];
    for (const [index, row] of change.rows) rows[index] = row;
    model = { ...change.head, rows, moments: grow(model.moments, change.moments) };
    fitMoments();
    // New rows may stand above others, so the folded ones and the chosen one have new places.
    const had = new Set(known), keys = keysOf(rows);
    folded = new Set();
    rows.forEach((row, index) => {
      if (wasFolded.has(keys[index])) folded.add(index);
      if (row.k === "run" && row.p !== null && !had.has(keys[index])) folded.add(row.p);
    });
    chosen = Math.max(keys.indexOf(wasChosen), 0);
    begin(!whole);
    if (chosen && places[chosen] < 0) chosen = shownAbove(chosen);
    if (query) search();
    if (!$("details").hidden) showDetails();
    say("live", "● live");
  });
  source.addEventListener("damaged", (event) => say("lost", `✕ ${JSON.parse(event.data)}`));
  source.onerror = () => say("lost", "✕ not connected");
}
function listen() {
  $("grid").addEventListener("keydown", onKey);
  document.addEventListener("keydown", onPageKey);
  $("scroller").addEventListener("scroll", draw, { passive: true });
  $("grid").addEventListener("wheel", onWheel, { passive: false });
  $("scroller").addEventListener("pointermove", onMove);
  $("scroller").addEventListener("pointerleave", () => { $("cursor").hidden = true; });
  $("content").addEventListener("click", (event) => {
    const made = event.target.closest(".row");
    if (!made) return;
    const index = Number(made.dataset.row);
    if (event.target.classList.contains("fold") && hasChildren(index)) toggle(index);
    choose(index);
    if (!event.target.classList.contains("fold")) showDetails();
  });
  $("content").addEventListener("dblclick", (event) => { const made = event.target.closest(".row"); if (made) frame(model.rows[Number(made.dataset.row)]); });
  drag($("head-row").lastElementChild, unitAt, (from, to) => look(Math.min(from, to), Math.max(from, to)));
  const ofOverview = (event) => (event.clientX - $("overview").getBoundingClientRect().left) / $("overview").clientWidth * axis.total * 1.02;
  drag($("overview"), ofOverview, (from, to) => look(Math.min(from, to), Math.max(from, to)));
  $("overview").addEventListener("dblclick", wholeView);
  $("only").addEventListener("change", () => { show($("only").value); $("scroller").scrollTop = 0; });
  $("search").addEventListener("input", search);
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter") { jump(event.shiftKey ? -1 : 1); event.preventDefault(); }
    if (event.key === "Escape" && places.length) focusChosen();
  });
  for (const [id, act] of Object.entries({
    previous: () => jump(-1), next: () => jump(1), closer: () => zoom(0.6), wider: () => zoom(1 / 0.6), fit: wholeView, near: frameSight,
    unfold: () => { folded.clear(); refold(); }, fold: () => { foldRuns(); refold(); if (places[chosen] < 0) chosen = shownAbove(chosen); },
    theme: () => { theme = (theme + 1) % 3; paint(); },
  })) $(id).addEventListener("click", act);
  dark.addEventListener("change", paint);
  // In a frame of another page, as in a notebook, the page has its width only after this script has run.
  new ResizeObserver(() => { if (model.rows.length) { drawNow(); drawOverview(); } }).observe($("scroller"));
  $("legend").addEventListener("toggle", draw);
}
foldRuns();
fillLegend();
paint();
begin(false);
listen();
beginMoments();
if (model.follow) follow();
document.documentElement.dataset.ready = "true";
