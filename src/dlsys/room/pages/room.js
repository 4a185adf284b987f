// What both pages share: nodes, messages to the room, and the stream of what it shows.

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const name in attributes) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), attributes[name]);
    else if (attributes[name] !== false) node.setAttribute(name, attributes[name]);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Text whose `code` keeps its face; never HTML.
export const rich = (text) =>
  text.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));

// The measured number of a choice, if there is one.
export const found = (results) =>
  (results.found ? el("p", { class: "found" }, ...rich(results.found)) : null);

// One of several choices, as a row that is easily hit.
export function option(name, value, words, letter) {
  return el("label", { class: "option" }, el("input", { type: "radio", name, value, required: "" }),
    letter ? el("span", { class: "letter" }, letter) : null, el("span", {}, ...words));
}

// HTML of the course, which the room made, as nodes. Long lines of code also scroll by keyboard.
export function nodes(html) {
  const { body } = new DOMParser().parseFromString(html, "text/html");
  for (const code of body.querySelectorAll("pre")) code.tabIndex = 0;
  return [...body.childNodes];
}

export const LETTERS = "ABCD";
export const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

// Post JSON; { status, data }, with status 0 where the room did not answer.
export async function post(path, data, headers = {}) {
  try {
    const answer = await fetch(path, { method: "POST", body: JSON.stringify(data),
      headers: { "Content-Type": "application/json", ...headers } });
    return { status: answer.status, data: await answer.json() };
  } catch {
    return { status: 0, data: { error: "The room does not answer. Is the network still there?" } };
  }
}

let ahead = 0; // ms of the room's clock before this one
const SILENT = 40000; // ms: the room says every 15 s that it lives
const AGAIN = [500, 2500]; // ms until another try, drawn between, so that not all come at once

// Calls show(data) for each event of a stream, and gone(status) while it is broken: 0 without an
// answer. Comes back by itself until `show` or `gone` returns "stop".
export async function listen(path, headers, show, gone) {
  for (;;) {
    const status = await read(path, headers, show);
    if (status === "stop" || gone(status) === "stop") return;
    await new Promise((go) => setTimeout(go, AGAIN[0] + Math.random() * (AGAIN[1] - AGAIN[0])));
  }
}

async function read(path, headers, show) {
  const away = new AbortController();
  let timer = setTimeout(() => away.abort(), SILENT);
  try {
    const answer = await fetch(path, { headers, signal: away.signal });
    if (!answer.ok) return answer.status;
    ahead = Date.parse(answer.headers.get("Date")) - Date.now() || 0;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ;) {
      const { value, done } = await reader.read();
      if (done) return 0;
      clearTimeout(timer);
      timer = setTimeout(() => away.abort(), SILENT);
      const events = (text + value).split("\n\n");
      text = events.pop();
      for (const event of events)
        if (event.startsWith("data: ")) show(JSON.parse(event.slice(6)));
    }
  } catch {
    return 0;
  } finally {
    clearTimeout(timer);
  }
}

// What is left until a moment, in seconds since 1970, by the room's clock: a phone's may be wrong.
export function clock(until) {
  const left = Math.max(0, Math.round(until - (Date.now() + ahead) / 1000));
  return left ? `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}` : "Time is up";
}

export const say = (text) => { document.getElementById("told").textContent = text; };
