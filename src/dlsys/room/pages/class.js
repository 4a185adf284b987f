// The page of a participant: the code, then whatever the room asks.
import { clock, count, el, found, LETTERS, listen, nodes, option, post, rich, say } from "./room.js";
import { results } from "./draw.js";
import * as review from "./review.js";

const main = document.getElementById("main");
const title = document.getElementById("title");
const link = document.getElementById("link");
let room = null, mine = {}, drawn = "", ticking = null, own = "CODE", at = "";

const put = (...nodes) => main.replaceChildren(...nodes.flat().filter(Boolean));
const heading = (text) => el("h1", {}, ...rich(text));

// ---- joining
function join(problem = "") {
  drawn = "";
  const code = el("input", { id: "code", name: "code", autocomplete: "off", required: "",
    autocapitalize: "characters", spellcheck: "false", maxlength: "15",
    pattern: "[A-Za-z]{6}(-[A-Za-z]{8})?", title: "six letters" });
  code.value = location.hash.slice(1);
  const form = el("form", { onsubmit: enter },
    el("label", { for: "code" }, "The six letters on the wall"), code,
    el("button", {}, "Join"), el("p", { class: "problem", role: "alert" }, problem));
  put(heading("Join the room"), form,
    el("p", { class: "soft" }, "No account. Your answers are counted, and a name only if you give one."));
  if (!problem && /^[a-z]{6}(-[a-z]{8})?$/i.test(code.value)) enter();
}

async function enter(event) {
  event?.preventDefault();
  const { status, data } = await post("join", { code: document.getElementById("code").value });
  if (status !== 200) return join(data.error);
  own = data.own;
  history.replaceState(null, "", location.pathname);
  return data.names ? askName() : follow();
}

function askName() {
  const name = el("input", { id: "name", name: "name", autocomplete: "off", maxlength: "40" });
  const send = async (event) => {
    event.preventDefault();
    if (name.value.trim()) await post("name", { name: name.value });
    follow();
  };
  put(heading("A name, if you like"), el("form", { onsubmit: send },
    el("p", {}, "The presenter asks for names. If you give one, the presenter's file shows it "
      + "next to your answers. Leave it empty to stay anonymous."),
    el("label", { for: "name" }, "Your name"), name, el("button", {}, "Go on")));
}

// ---- following the room
function follow() {
  listen("events", {}, (data) => {
    link.textContent = "";
    room = data.room;
    mine = data.mine;
    show();
  }, (status) => {
    if (room?.phase === "over") return "stop";
    if (status === 401) {
      join();
      return "stop";
    }
    link.textContent = status === 503 ? "The room is full. Trying again." : "Reconnecting";
    return "";
  });
}

function show() {
  const now = JSON.stringify([room, mine]);
  if (now === drawn) return; // a page that came back keeps what is half typed
  const same = drawn && key() === at;
  drawn = now;
  at = key();
  clearInterval(ticking);
  title.textContent = room.title;
  const run = same && document.getElementById("run");
  if (run) { // a change that is half answered stays so
    run.replaceChildren(...review.run(room.change.run));
    say("A recorded run is shown.");
  } else ({ rest: waiting, open: asking, closed, shown, revealed: room.change ? told : revealed,
    score, exercise, over })[room.phase]();
  if (!same) main.scrollIntoView();
}

const key = () => `${room.phase} ${room.trap} ${room.go}`;

function waiting() {
  put(heading("You are in"), el("p", {},
    `The next ${room.review ? "change" : "question"} appears here by itself.`),
  room.review ? null : lab());
}

function over() {
  put(heading("The room is over"), el("p", {}, "Thank you. You may close this page."));
}

// By these letters another device joins as the same participant, who counts once.
const lab = () => el("p", { class: "soft" }, "With the lesson open in JupyterLab, run this there. "
  + "Your guesses and checks then count as yours, and you count once: ", el("code", {},
  `dlsys join ${location.origin}${location.pathname} ${own}`));

function asking() {
  const given = mine[room.go];
  if (given) return thanks(given);
  say(room.change ? `Change ${room.trap}: ${room.change.title}` : `Question: ${room.question.text}`);
  return form();
}

// What one has to know to guess, as in the lesson; once answered it is only a look away.
const about = (open) => [
  el("details", { open: open && "" }, el("summary", {}, "The situation"), ...nodes(room.situation)),
  el("details", {}, el("summary", {}, "The code"), ...nodes(room.code))];

function form() {
  if (room.change) return change();
  const { text, choices, unit } = room.question;
  const problem = el("p", { class: "problem", role: "alert" });
  const answers = choices.length ? choices.map((c, k) => option("guess", k, rich(c), LETTERS[k]))
    : [el("label", { class: "inline" }, el("span", { class: "unseen" }, "Your guess"),
      el("input", { type: "text", name: "guess", required: "", inputmode: "decimal",
        autocomplete: "off", maxlength: "30" }), el("span", {}, ...rich(unit)))];
  const node = el("form", {},
    el("fieldset", {}, el("legend", {}, el("h1", {}, el("span", { class: "eyebrow" }, room.go > 1
      ? "Again, after talking" : "Your guess"), ...rich(text))), ...answers),
    el("fieldset", { class: "sure" }, el("legend", {}, "How sure are you?"),
      option("sure", "yes", ["sure"]), option("sure", "no", ["not sure"])),
    el("button", {}, "This is my answer"), problem);
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    send(new FormData(node), problem);
  });
  put(about(room.go === 1), node);
}

// A number as people write it: a comma is a decimal sign, as a point is. A comma before three
// digits may be either. NaN where it is no number, with `why` set to what to do.
let why = "";
const LARGEST = 1e15; // as the room has it
function number(text) {
  const written = text.trim().replace(/^\u2212/, "-");
  if (/^-?[1-9]\d{0,2},\d{3}$/.test(written))
    why = `${written} may be ${written.replace(",", "")} or ${written.replace(",", ".")}. `
      + "Write the one that you mean, with a point or without a separator.";
  else if (!/^[-+]?(\d+([.,]\d*)?|[.,]\d+)(e[-+]?\d{1,3})?$/i.test(written))
    why = `“${written.slice(0, 20)}” is not a number here. Write only digits, with one comma or point `
      + "before the decimals: 5,5 or 5.5, but 1000 without a separator.";
  const value = Number(written.replace(",", "."));
  if (!why && Math.abs(value) > LARGEST)
    why = `${written.slice(0, 20)} is too large to be drawn. Write a number of at most 1e15.`;
  return why ? NaN : value;
}

function send(filled, problem) {
  const { question } = room, said = filled.get("guess");
  why = "";
  const given = { guess: question.choices.length ? question.choices[Number(said)] : number(said),
    sure: filled.get("sure") === "yes" };
  problem.textContent = why;
  return why ? main.querySelector("input[name=guess]").focus() : answer(given, given, problem);
}

// Send an answer, and keep it as the room will say it: `kept`.
async function answer(given, kept, problem) {
  const { trap, go } = room;
  const { status, data } = await post("answer", { trap, go, ...given });
  if (status !== 200) {
    problem.textContent = data.error;
    return;
  }
  if (room.trap !== trap || room.go !== go) return;
  mine = { ...mine, [go]: kept };
  drawn = JSON.stringify([room, mine]);
  if (room.phase === "open") thanks(kept);
}

function thanks(given) {
  const again = el("button", { class: "quiet", type: "button", onclick: () => {
    form();
    main.querySelector("input").focus();
  } }, "Change my answer");
  put(heading("Thank you"), ...(room.change ? [review.said(given, room.change), again, theRun(),
    theChange()]
    : [said("Your answer", given), again, about(false)]));
  say("Your answer has arrived.");
}

function said(what, { guess, sure }) {
  const { choices, unit } = room.question;
  const words = choices.length ? `${LETTERS[choices.indexOf(guess)]}, ${guess}` : `${guess} ${unit}`;
  return el("p", { class: "said" }, `${what}: `, ...rich(words), sure ? ", sure." : ", not sure.");
}

const ours = () => Object.entries(mine).map(([go, given]) =>
  said(room.go === 1 ? "Your answer" : `Your answer ${go === "1" ? "before" : "after"}`, given));

function closed() {
  put(heading("Thank you"), el("p", {}, "The question is closed."), ours());
}

function shown() {
  put(heading(room.question.text), results(room.results), ours(),
    room.go > 1 ? null
      : el("p", {}, "Talk to somebody with a different answer. What convinces you?"), about(false));
  say("The counts are shown.");
}

function revealed() {
  put(heading(room.question.text), el("p", { class: "measured" }, "Measured: ",
    ...rich(room.results.measured), "."), found(room.results), ours(), results(room.results),
    el("button", { class: "quiet", type: "button", onclick: keep }, `What to keep of trap ${room.trap}`),
    el("section", { id: "keep" }));
  say(`Measured: ${room.results.measured}`);
}

async function keep() {
  const answer = await fetch(`keep/${room.trap}`).catch(() => null);
  if (!answer?.ok) return;
  document.getElementById("keep").replaceChildren(...nodes((await answer.json()).html));
}

// ---- a change under review
const changeTitle = () => [el("span", { class: "eyebrow" }, `Change ${room.trap}`),
  ...rich(room.change.title)];
const theRun = () => el("section", { id: "run" }, ...review.run(room.change.run));
const theChange = () => el("details", {}, el("summary", {}, "The change"),
  ...review.about(room.change), review.lines(room.change.lines));

function change() {
  put(el("h1", {}, ...changeTitle()), review.about(room.change),
    theRun(), review.form(room.change, mine[room.go], (given, problem) => answer(given, {
      mark: given.mark === "none" ? "" : given.mark, confidence: Number(given.confidence),
      consequence: Number(given.consequence) }, problem)));
}

function told() {
  const [lines, said] = review.outcome(room.results, room.change);
  const given = mine[room.go];
  put(el("h1", {}, ...changeTitle()), given ? review.said(given, room.change) : null, said, lines,
    review.run(room.change.run));
  say(room.results.heading);
}

function score() {
  put(heading("The room's score"), review.score(room.score, "of the room"),
    mine.score.answers ? [el("h2", {}, "Yours"), ...review.score(mine.score, "of your answers")] : null);
  say("The room's score is shown.");
}

// ---- an exercise
function exercise() {
  const time = el("p", { class: "clock", role: "timer" });
  const tick = () => { time.textContent = clock(room.until); };
  tick();
  ticking = setInterval(tick, 1000);
  const hints = el("ol", { class: "hints" });
  const more = el("button", { class: "quiet", type: "button", onclick: () => hint(hints, more) });
  put(heading(`Exercise ${room.trap}`), el("p", {}, room.name), time,
    el("p", {}, "Write the exercise in your worksheet, and check it there."),
    hints, more, lab());
  open(hints, more, mine.hints ?? 0);
  say(`Exercise ${room.trap} has begun.`);
}

async function hint(hints, more) {
  const number = hints.childElementCount + 1;
  open(hints, more, number);
  await post("hint", { trap: room.trap, number });
}

function open(hints, more, number) {
  hints.replaceChildren(...room.hints.slice(0, number).map((h) => el("li", {}, ...rich(h))));
  const left = room.hints.length - number;
  more.hidden = left <= 0;
  more.textContent = `Open hint ${number + 1} (${count(left, "hint")} left)`;
}

async function begin() {
  const answer = await fetch("me").catch(() => null);
  if (answer?.ok) ({ own } = await answer.json());
  // An address with the letters of another device joins as that one, also after a first visit.
  return answer && (!answer.ok || location.hash.includes("-")) ? join() : follow();
}
begin();
