// The presenter's page. The secret comes behind the # of its address, which then leaves the bar:
// a projector shows the bar. Everything has a key.
import { clock, count, el, found, LETTERS, listen, nodes, post, rich, say } from "./room.js";
import { results } from "./draw.js";
import * as review from "./review.js";

const STEPS = { // what a step is called, and its key
  ask: ["Next question", "n"], close: ["Close", "c"], show: ["Show the counts", "s"],
  again: ["Ask again", "a"], reveal: ["Reveal", "r"], reopen: ["Open again", "b"],
  exercise: ["Exercise", "x"], back: ["Back to the exercise", "x"], rest: ["Overview", "o"],
  draw_a: ["Draw one of form a", "a"], draw_b: ["Draw one of form b", "b"],
  run: ["Show a recorded run", "t"], score: ["The room's score", "s"],
};
const main = document.getElementById("main"), foot = document.getElementById("steps");
const link = document.getElementById("link"), where = document.getElementById("where");
const options = new URLSearchParams(location.search);
const notes = options.has("notes"), framed = window.parent !== window;
let room = null, ticking = null, wanted = options.get("trap"), drawn = "", choosing = false;

// ---- the secret
function kept() { // a browser may forbid a page to keep anything
  try {
    return window.sessionStorage;
  } catch {
    return { getItem: () => null, setItem() {} };
  }
}
const secret = location.hash.slice(1) || kept().getItem("dlsys-room") || "";
kept().setItem("dlsys-room", secret);
if (!framed) history.replaceState(null, "", location.pathname + location.search);
const headers = { Authorization: `Bearer ${secret}` };

// ---- following
listen(`watch${notes ? "?notes=1" : ""}`, headers, (data) => {
  link.textContent = "";
  room = data;
  show();
}, (status) => {
  if (status === 403) {
    main.replaceChildren(el("h1", {}, "This is the presenter's page"),
      el("p", {}, "Open the presenter's address as ", el("code", {}, "dlsys room"), " printed it."));
    return "stop";
  }
  if (room?.phase === "over") return "stop";
  link.textContent = "Reconnecting";
  return "";
});

async function step(name, more = {}) {
  const { status, data } = await post("step", { step: name, ...more }, headers);
  if (status !== 200) link.textContent = data.error;
}

// ---- drawing
function show() {
  clearInterval(ticking);
  document.getElementById("title").textContent = room.title;
  where.replaceChildren(...(["rest", "over"].includes(room.phase) ? []
    : ["Join: ", el("span", {}, bare(room.address)), " ",
      el("strong", { class: "code" }, room.code)]));
  const now = `${room.phase} ${room.trap} ${room.go}`;
  const focused = foot.contains(document.activeElement);
  main.className = room.phase;
  if (now !== drawn) choosing = false;
  main.replaceChildren(...(notes ? speaking() : []),
    ...({ rest, open: room.change ? changing : asking, closed, shown,
      revealed: room.change ? told : shown, score, exercise, over })[room.phase]());
  foot.replaceChildren(...steps());
  fit();
  // A button with the focus takes a press of space: while a class works none must have it by itself.
  if (focused) (spaceGoesOn() ? foot.querySelector("button") : main)?.focus();
  if (now !== drawn) say(TOLD[room.phase]?.() ?? "");
  drawn = now;
}

// The largest letters with which everything fits on the projector; all sizes are in em.
function fit() {
  const root = document.documentElement;
  for (let size = 100; size >= 60; size -= 4) {
    main.style.fontSize = `${size}%`;
    if (notes || root.scrollHeight <= window.innerHeight) return;
  }
}
window.addEventListener("resize", () => room && fit());

const TOLD = { closed: () => "Closed.",
  open: () => `Asked: ${(room.change ? room.change.title : room.question.text).replaceAll("`", "")}`,
  shown: () => "The counts are shown.", score: () => "The room's score is shown.",
  revealed: () => room.results.heading ?? `Measured: ${room.results.measured.replaceAll("`", "")}`,
  exercise: () => `Exercise ${room.trap} has begun.` };

function steps() {
  return order().map((name, k) => {
    const [words, key] = STEPS[name];
    const label = { ask: `Ask ${room.review ? "change " : ""}${asked()}`, exercise: `Exercise ${room.trap}`,
      back: `Back to exercise ${room.left}`,
      close: room.change ? "Close, and show what is right" : words }[name] ?? words;
    return el("button", { class: k ? "quiet" : "", type: "button", onclick: () => go(name) },
      label, " ", el("kbd", {}, k || !spaceGoesOn() ? key.toUpperCase() : "Space"));
  });
}

// A class that works must not lose its exercise, or its change, to a key that is easily hit.
const spaceGoesOn = () => room.phase !== "exercise" && !(room.change && room.phase === "open");

// A slide's frame names the trap that it is about: asking that one comes first.
const awaited = () => wanted && room.trap !== wanted && room.traps.some((t) => t.id === wanted);
const asked = () => (awaited() ? wanted : room.next);
const order = () => (awaited() && room.steps.includes("ask")
  ? ["ask", ...room.steps.filter((name) => name !== "ask")] : room.steps);

function go(name) {
  if (!name) return;
  if (name === "run") {
    choosing = !choosing;
    return show();
  }
  if (name === "ask") step(name, { trap: asked() });
  else step(name, name === "exercise" ? { trap: room.trap } : {});
  if (name === "ask") wanted = null;
}

const bare = (address) => address.replace(/^https?:\/\//, "").replace(/\/$/, "");
const here = () => el("p", { class: "here" }, el("strong", {}, room.here), " here");

function rest() {
  return [el("section", { class: "invite" }, el("h1", { class: "unseen" }, "Join the room"),
    el("img", { src: room.qr, alt: `QR code of ${room.address}`, width: 330, height: 330 }),
    el("p", { class: "address" }, bare(room.address)),
    el("p", { class: "code big" }, room.code), here()),
  room.review ? changes() : el("nav", { "aria-label": "Questions" }, el("ol", { class: "traps" }, ...room.traps.map((t) =>
    el("li", {}, el("button", { type: "button", class: t.id === room.next ? "trap next" : "trap",
      onclick: () => step("ask", { trap: t.id }) }, el("span", { class: "id" }, t.id),
    el("span", {}, t.title), el("span", { class: "state" }, STATE[t.phase] ?? ""))))))];
}
const STATE = { revealed: "✓ done", open: "open", closed: "closed", shown: "shown" };

function question() {
  const again = room.go > 1 && ["open", "closed"].includes(room.phase);
  return el("h1", {}, again ? el("span", { class: "eyebrow" }, "Again, after talking") : null,
    ...rich(room.question.text));
}

function choices() {
  const { choices, unit } = room.question;
  if (!choices.length) return el("p", { class: "unit" }, "A number, in ", ...rich(unit));
  return el("ol", { class: "choices" }, ...choices.map((c, k) =>
    el("li", {}, el("span", { class: "letter" }, LETTERS[k]), el("span", {}, ...rich(c)))));
}

function answered() {
  const share = room.here ? Math.min(1, room.answered / room.here) : 0;
  const bar = el("span", { class: "track", "aria-hidden": "true" }, el("span", { class: "sure" }));
  bar.firstChild.style.width = `${100 * share}%`;
  return el("div", { class: "answered" }, el("p", {}, el("strong", {}, room.answered),
    ` answered of ${room.here} here`), bar);
}

const over = () => [el("h1", {}, "The room is over"), el("p", {}, "The terminal of ",
  el("code", {}, "dlsys room"), " shows where its report is.")];

const situation = () => el("div", { class: "situation" }, ...nodes(room.situation));
const asking = () => [situation(), question(), choices(), answered(),
  el("img", { class: "corner", src: room.qr, alt: "QR code to join", width: 150, height: 150 })];
const closed = () => [situation(), question(), choices(), el("p", { class: "answered" },
  `Closed, with ${count(room.answered, "answer")}.`)];

function shown() {
  const counts = room.results;
  const [first, ...others] = results(counts);
  return [question(), counts.measured ? el("p", { class: "measured" }, "Measured: ",
    ...rich(counts.measured), ".") : null, found(counts),
  el("div", { class: "side" }, el("div", {}, first, others[0]), ...others.slice(1))].filter(Boolean);
}

// ---- changes under review
function changes() {
  return el("nav", { "aria-label": "Changes" }, ...["a", "b"].flatMap((form) => [
    el("h2", {}, `Form ${form}`), el("ol", { class: "numbers" },
      ...room.traps.filter((t) => t.form === form).map((t) => el("li", {}, el("button", {
        type: "button", class: t.id === room.next ? "trap next" : "trap", title: t.title,
        onclick: () => step("ask", { trap: t.id }) }, t.id, t.phase === "revealed" ? " ✓" : "",
      el("span", { class: "unseen" }, ` ${t.title}, ${STATE[t.phase] ?? "not asked"}`)))))]),
  el("p", { class: "soft" }, `Next: change ${room.next}, `,
    ...rich(room.traps.find((t) => t.id === room.next).title), ". The numbers are those of ",
    el("code", {}, "dlsys review-diff --list"), "."));
}

const changeTitle = () => el("h1", { class: "long" }, `Change ${room.trap}: `, ...rich(room.change.title));

function changing() {
  const { run: ran } = room.change;
  return [changeTitle(), el("div", { class: "side diffs" },
    review.lines(room.change.lines),
    el("div", {}, ...(choosing && !ran ? runs() : [...review.about(room.change),
      ...review.run(ran)]), answered(), choosing || ran ? null
      : el("img", { class: "join", src: room.qr, alt: "QR code to join", width: 120,
        height: 120 })))];
}

function runs() {
  return [el("h2", {}, "One recorded run, without and with the change"),
    el("ol", { class: "runs" }, ...Object.entries(room.runs).map(([name, what], k) =>
      el("li", {}, el("button", { type: "button", class: "quiet",
        onclick: () => step("run", { run: name }) }, name, " ", el("kbd", {}, k + 1)), what)))];
}

function told() {
  const [lines, said] = review.outcome(room.results, room.change);
  return [changeTitle(), el("div", { class: "side diffs" }, el("div", {}, ...lines),
    el("div", {}, ...said))];
}

const score = () => [el("h1", {}, "The room's score"), ...review.score(room.score, "of the room"),
  review.table(room.rows)];

// ---- an exercise
function exercise() {
  const now = room.exercise, time = el("p", { class: "clock", role: "timer" });
  const tick = () => { time.textContent = clock(room.until); };
  tick();
  ticking = setInterval(tick, 1000);
  const all = Math.max(1, now.solved + now.trying);
  const bar = el("span", { class: "track", "aria-hidden": "true" }, el("span", { class: "sure" }));
  bar.firstChild.style.width = `${(100 * now.solved) / all}%`;
  const first = now.mistakes[0];
  return [el("h1", {}, `Exercise ${room.trap}: ${room.name}`),
    el("div", { class: "side" },
      el("div", {}, time, el("p", { class: "big" }, el("strong", {}, now.solved), " passed, ",
        el("strong", {}, now.trying), " trying"), bar, hints(now.hints)),
      el("div", {}, el("h2", {}, "Where they are"), stuck(now),
        first?.ask ? el("p", { class: "ask" }, el("span", { class: "eyebrow" },
          "Ask them"), ...rich(first.ask)) : null))];
}

function hints(opened) {
  return opened.some(Boolean) ? el("p", { class: "soft" }, "Hints opened here: ",
    opened.map((n, k) => `${k + 1}. by ${n}`).join(", ")) : null;
}

const MOST = 5; // names of mistakes that a wall can hold
function stuck({ mistakes, unnamed, todo }) {
  const rows = [...mistakes.slice(0, MOST).map(({ name, count }) => [count, name])];
  const others = mistakes.slice(MOST).reduce((sum, m) => sum + m.count, 0) + unnamed;
  if (others) rows.push([others, "another mistake"]);
  if (todo) rows.push([todo, "not written yet"]);
  if (!rows.length) return el("p", { class: "soft" }, "No check has been reported yet.");
  return el("ol", { class: "stuck" }, ...rows.map(([n, name]) =>
    el("li", {}, el("strong", {}, n), el("span", {}, ...rich(name)))));
}

// ---- the presenter's own screen
function speaking() {
  const { advice, peek, live, questions } = room.notes;
  return [el("section", { class: "notes" }, el("h2", {}, "For you alone"),
    advice ? el("p", { class: "measured" }, advice) : null,
    ...(peek && room.phase === "closed" ? results(peek) : []),
    live ? el("p", {}, el("strong", {}, "Live: "), ...rich(live)) : null,
    ...questions.map((q) => el("p", {}, el("strong", {}, ...rich(q.ask)), " ", ...rich(q.answer))))];
}

// ---- keys
function dark() {
  const root = document.documentElement.style;
  const isDark = root.colorScheme ? root.colorScheme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.colorScheme = isDark ? "light" : "dark";
}

document.addEventListener("keydown", (event) => {
  if (framed && event.key === "Escape") window.parent.postMessage("dlsys-room-close", "*");
  if (event.ctrlKey || event.metaKey || event.altKey || !room) return;
  if (event.key === " " && document.activeElement?.tagName !== "BUTTON") {
    event.preventDefault();
    if (!event.repeat && spaceGoesOn()) go(order()[0]);
  }
  const name = room.steps.find((one) => STEPS[one][1] === event.key.toLowerCase());
  if (name && !event.repeat) go(name);
  if (event.key.toLowerCase() === "d") dark();
  const run = choosing && Object.keys(room.runs)[Number(event.key) - 1];
  if (run && !event.repeat) step("run", { run });
});
