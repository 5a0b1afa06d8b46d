// The page of the chat: one run at a time, read as server-sent events by `fetch` (an EventSource can't POST).
//
// The facts are the run's id and the id of the last recorded event that was shown. When a connection ends before the
// run does, the page asks for the events that follow that id; nothing else is needed to come back. What a person writes
// while a run works or waits is added to it, and stays marked until the model is shown it.
"use strict";

const $ = (id) => document.getElementById(id);
const conversation = (sessionStorage.conversation ??= crypto.randomUUID());
const FINAL = new Set(["error", "interrupted", "detached"]);
const PATIENCE = 5; // attempts to come back, one after the other, each later than the one before

let run = null; // the id of the run that is shown
let last = null; // the id of the last recorded event
let connection = null; // the AbortController of the stream under way
let followed = 0; // how often a stream was followed: an answer may be given before the stream that asked has ended
let partial = null; // the bubble of the answer that is coming
let cards = new Map(); // the card of each call, by path and id
let waiting = new Map(); // the bubble of each input that the model hasn't been shown, by its id

function show(kind, text) {
  const element = document.createElement("div");
  element.className = kind;
  element.textContent = text; // never as HTML: it may come from anywhere
  $("log").append(element);
  element.scrollIntoView({ block: "nearest" });
  return element;
}

function setState(text, busy) {
  $("state").textContent = text;
  $("send").disabled = busy && run === null; // it has no name yet
  $("cancel").disabled = $("drop").disabled = !busy;
  for (const button of document.querySelectorAll(".verdict button")) button.disabled = busy; // one verdict at a time
}

function cardOf(event, call) {
  const key = JSON.stringify([event.path, call.call_id]);
  if (!cards.has(key)) {
    let lane = $("log").lastElementChild;
    if (!lane?.classList.contains("calls")) lane = show("calls", "");
    const card = document.createElement("div");
    const name = document.createElement("b");
    name.textContent = call.name;
    const what = document.createElement("div");
    what.textContent = call.arguments ?? "";
    const state = document.createElement("div");
    state.className = "outcome";
    card.append(name, what, state);
    card.className = "call";
    lane.append(card);
    cards.set(key, card);
  }
  return cards.get(key);
}

function setCard(card, kind, text) {
  card.className = `call ${kind}`;
  card.querySelector(".outcome").textContent = text;
}

const HANDLERS = {
  text_delta(event) {
    if (event.path.length) return; // of an agent tool
    partial ??= show("message assistant partial", "");
    partial.textContent += event.text;
  },
  item_created(event) {
    const item = event.item;
    if (event.path.length || !["assistant_message", "user_message"].includes(item.type)) return;
    const text = typeof item.content === "string" ? item.content : item.content.map((part) => part.text ?? "").join("");
    if (item.type === "user_message") return showInput(text);
    // The whole text takes the place of its pieces, some of which may have been missed.
    partial?.remove();
    partial = null;
    if (text) show("message assistant", text);
  },
  call_started(event) {
    setCard(cardOf(event, event.call), "running", "running");
  },
  call_progress(event) {
    const card = cardOf(event, event.call);
    let bar = card.querySelector("progress");
    if (!bar) card.append((bar = document.createElement("progress")));
    bar.max = event.total ?? 1;
    bar.value = event.progress;
  },
  call_settled(event) {
    const card = cardOf(event, event.call);
    card.querySelector("progress")?.remove();
    card.querySelector(".verdict")?.remove();
    const output = event.outcome.output;
    setCard(card, event.outcome.status, typeof output === "string" ? `${event.outcome.status}: ${output}` : event.outcome.status);
  },
  interrupted(event) {
    for (const asked of event.interruptions) askFor(asked, event);
    setState("waiting for you", false);
  },
  error(event) {
    show("note error", `${event.error.type}: ${event.error.message}`);
  },
  detached() {
    show("note", "The run is not under way any more.");
  },
  run_ended(event) {
    if (event.path.length) return;
    partial?.classList.remove("partial");
    partial = null;
    if (event.status === "cancelled") show("note", "cancelled");
  },
};

// Send what belongs to the run that is shown; return the answer, or null once the error is shown.
async function tell(path, body) {
  const headers = { "content-type": "application/json" };
  try {
    const response = await fetch(`/runs/${run}/${path}`, { method: "POST", headers, body: JSON.stringify(body) });
    const answer = await response.json();
    if (response.ok) return answer;
    show("note error", answer.error);
  } catch (error) {
    show("note error", `The connection is lost: ${error.message}`);
  }
  return null;
}

// Add to the run what a person has written; it can be taken back until the model is shown it.
async function addInput(text) {
  const id = crypto.randomUUID();
  const bubble = show("message user unread", text);
  waiting.set(id, bubble);
  const back = document.createElement("button");
  back.type = "button";
  back.textContent = "take back";
  back.addEventListener("click", async () => {
    if (await tell("withdraw", { id, conversation })) forget(id);
  });
  if (!(await tell("input", { input: text, id, conversation }))) forget(id);
  else if (waiting.has(id)) bubble.append(back);
}

function forget(id) {
  waiting.get(id)?.remove();
  waiting.delete(id);
}

// Show an input where the model was shown it, in place of the bubble that has waited.
function showInput(text) {
  for (const [id, bubble] of waiting) {
    if (bubble.firstChild.textContent !== text) continue;
    forget(id);
    break;
  }
  show("message user", text);
}

// Return an element for a value of a JSON schema, and the function that reads the value.
function fieldOf(schema) {
  const choices = schema.type === "boolean" ? [true, false] : schema.enum;
  if (choices) {
    const select = document.createElement("select");
    for (const choice of choices) select.add(new Option(typeof choice === "string" ? choice : JSON.stringify(choice)));
    return [select, () => choices[select.selectedIndex]];
  }
  if (schema.type === "object" && schema.properties) {
    const box = document.createElement("div");
    const members = Object.entries(schema.properties).map(([name, inner]) => {
      const label = document.createElement("label");
      const [element, value] = fieldOf(inner);
      label.append(name, " ", element);
      box.append(label);
      return [name, value];
    });
    return [box, () => Object.fromEntries(members.map(([name, value]) => [name, value()]))];
  }
  const input = document.createElement("input");
  input.placeholder = schema.type ?? "JSON";
  return [input, () => (schema.type === "string" ? input.value : JSON.parse(input.value))];
}

// Show the form of a call that this page answers; it stays until the call has settled, since an answer may not fit.
function askForAnswer(asked) {
  const card = cardOf({ path: asked.path ?? [] }, asked.call);
  setCard(card, "waiting", "what is your answer?");
  const form = document.createElement("form");
  form.className = "verdict";
  const [element, value] = fieldOf(asked.returns);
  const send = (given) => {
    const body = { call_id: asked.call.call_id, path: asked.path ?? [], ...given, conversation };
    follow("POST", `/runs/${run}/answer`, body);
  };
  form.append(element);
  for (const [text, kind, type] of [["answer", "yes", "submit"], ["no answer", "no", "button"]]) {
    const button = document.createElement("button");
    button.type = type;
    button.className = kind;
    button.textContent = text;
    form.append(button);
  }
  form.lastElementChild.addEventListener("click", () => send({ error: "The user gives no answer." }));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    try {
      send({ value: value() });
    } catch (error) {
      show("note error", error.message);
    }
  });
  card.querySelector(".verdict")?.remove();
  card.append(form);
}

function askFor(asked, pause) {
  if (asked.type === "call_to_answer") return askForAnswer(asked);
  const card = cardOf({ path: asked.path ?? [] }, asked.call);
  setCard(card, "waiting", "may it run?");
  const buttons = document.createElement("div");
  buttons.className = "verdict";
  for (const [text, kind, approve] of [["approve", "yes", true], ["reject", "no", false]]) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = kind;
    button.textContent = text;
    button.addEventListener("click", () => {
      buttons.remove();
      const verdict = { call_id: asked.call.call_id, path: asked.path ?? [], approve };
      follow("POST", "/verdicts", { handle: pause.handle, verdicts: [verdict], conversation });
    });
    buttons.append(button);
  }
  card.querySelector(".verdict")?.remove();
  card.append(buttons);
}

// Read one stream to its end; return true if it came to the run's end.
async function read(method, path, body) {
  connection = new AbortController();
  const headers = body ? { "content-type": "application/json" } : last ? { "last-event-id": last } : {};
  const response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal: connection.signal });
  if (!response.ok) {
    show("note error", (await response.json()).error);
    return true;
  }
  if (response.status === 204) return true; // the run is over, and all of it is shown
  run = response.headers.get("agentloop-run");
  $("send").disabled = false;
  history.replaceState(null, "", `#${run}`);
  const pieces = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let ended = false;
  for (;;) {
    const { done, value } = await pieces.read();
    if (done) return ended;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s).slice(0, 2)));
      if (!fields.data) continue; // a comment
      const event = JSON.parse(fields.data);
      last = fields.id ?? last;
      HANDLERS[event.type]?.(event);
      ended ||= FINAL.has(event.type) || (event.type === "run_ended" && !event.path.length);
    }
  }
}

// Read a run, and come back to it until it has ended.
async function follow(method, path, body) {
  const mine = ++followed;
  setState("working", true);
  for (let attempt = 0; ; attempt++) {
    let ended = false;
    try {
      ended = await read(method, path, body);
    } catch (error) {
      if (run === null || attempt >= PATIENCE) {
        show("note error", `The connection is lost: ${error.message}`);
        break;
      }
    }
    if (ended) break;
    setState("connecting again", true);
    show("note", "connection lost: reading on");
    await new Promise((resolve) => setTimeout(resolve, 200 * 2 ** attempt));
    [method, path, body] = ["GET", `/runs/${run}/events`, undefined];
    partial?.remove(); // its pieces are not sent again: the item holds the whole text
    partial = null;
  }
  if (mine !== followed) return; // the stream of the answer tells the state
  connection = null;
  if ($("state").textContent !== "waiting for you") {
    for (const bubble of waiting.values()) bubble.querySelector("button")?.remove(); // the run has ended before
    waiting = new Map();
    setState("ready", false);
  }
  $("text").focus();
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || $("send").disabled) return;
  $("text").value = "";
  if ($("state").textContent !== "ready") {
    addInput(text);
    return;
  }
  [run, last, cards] = [null, null, new Map()];
  show("message user", text);
  follow("POST", "/runs", { input: text, conversation });
});

$("cancel").addEventListener("click", () =>
  fetch(`/runs/${run}/cancel`, { method: "POST", headers: { "content-type": "application/json" }, body: "{}" }));

$("drop").addEventListener("click", () => connection?.abort());

if (location.hash.length > 1) {
  run = location.hash.slice(1);
  follow("GET", `/runs/${run}/events`);
}
