// The page of a participant: the code, then whatever the room asks.
import { clock, count, el, LETTERS, listen, nodes, post, rich, say } from "./room.js";
import { results } from "./draw.js";

const main = document.getElementById("main");
const title = document.getElementById("title");
const link = document.getElementById("link");
let room = null, mine = {}, drawn = "", ticking = null;

const put = (...nodes) => main.replaceChildren(...nodes.flat().filter(Boolean));
const heading = (text) => el("h1", {}, ...rich(text));

// ---- joining
function join(problem = "") {
  drawn = "";
  const code = el("input", { id: "code", name: "code", autocomplete: "off", required: "",
    autocapitalize: "characters", spellcheck: "false", maxlength: "6", pattern: "[A-Za-z]{6}",
    title: "six letters" });
  code.value = location.hash.slice(1, 7);
  const form = el("form", { onsubmit: enter },
    el("label", { for: "code" }, "The six letters on the wall"), code,
    el("button", {}, "Join"), el("p", { class: "problem", role: "alert" }, problem));
  put(heading("Join the room"), form,
    el("p", { class: "soft" }, "No account. Your answers are counted, nothing else."));
  if (!problem && /^[a-z]{6}$/i.test(code.value)) enter();
}

async function enter(event) {
  event?.preventDefault();
  const { status, data } = await post("join", { code: document.getElementById("code").value });
  if (status !== 200) return join(data.error);
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
    el("p", {}, "The presenter asks for names. With one, your answers stand beside it in the "
      + "presenter's file. Leave it empty to stay without."),
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
  const same = drawn && key() === JSON.parse(drawn)[2];
  drawn = now;
  clearInterval(ticking);
  title.textContent = room.title;
  ({ rest: waiting, open: asking, closed, shown, revealed, exercise,
    over })[room.phase]();
  if (!same) main.scrollIntoView();
}

const key = () => `${room.phase} ${room.trap} ${room.go}`;

function waiting() {
  put(heading("You are in"), el("p", {}, "The next question appears here by itself."), lab());
}

function over() {
  put(heading("The room is over"), el("p", {}, "Thank you. You may close this page."));
}

const lab = () => el("p", { class: "soft" }, "With the lesson open in JupyterLab, this tells the "
  + "room your guesses and checks there, too: ", el("code", {},
  `dlsys join ${location.origin}${location.pathname} CODE`));

function asking() {
  const given = mine[room.go];
  if (given) return thanks(given);
  say(`Question: ${room.question.text}`);
  return form();
}

// What one has to know to guess, as in the lesson; once answered it is only a look away.
const about = (open) => [
  el("details", { open: open && "" }, el("summary", {}, "The situation"), ...nodes(room.situation)),
  el("details", {}, el("summary", {}, "The code"), ...nodes(room.code))];

function form() {
  const { text, choices, unit } = room.question;
  const problem = el("p", { class: "problem", role: "alert" });
  const answers = choices.length ? choices.map((c, k) => option("guess", k, rich(c), LETTERS[k]))
    : [el("label", { class: "inline" }, el("span", { class: "unseen" }, "Your guess"),
      el("input", { type: "number", name: "guess", step: "any", required: "",
        inputmode: "decimal" }), el("span", {}, ...rich(unit)))];
  const node = el("form", {},
    el("fieldset", {}, el("legend", {}, el("h1", {}, el("span", { class: "eyebrow" }, room.go > 1
      ? "Once more, after talking" : "Your guess"), ...rich(text))), ...answers),
    el("fieldset", { class: "sure" }, el("legend", {}, "How sure are you?"),
      option("sure", "yes", ["sure"]), option("sure", "no", ["not sure"])),
    el("button", {}, "This is my answer"), problem);
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    send(new FormData(node), problem);
  });
  put(about(room.go === 1), node);
}

function option(name, value, words, letter) {
  return el("label", { class: "option" }, el("input", { type: "radio", name, value, required: "" }),
    letter ? el("span", { class: "letter" }, letter) : null, el("span", {}, ...words));
}

async function send(filled, problem) {
  const { trap, go, question } = room, value = Number(filled.get("guess"));
  const given = { guess: question.choices.length ? question.choices[value] : value,
    sure: filled.get("sure") === "yes" };
  const { status, data } = await post("answer", { trap, go, ...given });
  if (status !== 200) {
    problem.textContent = data.error;
    return;
  }
  if (room.trap !== trap || room.go !== go) return;
  mine = { ...mine, [go]: given };
  drawn = JSON.stringify([room, mine]);
  if (room.phase === "open") thanks(given);
}

function thanks(given) {
  const again = el("button", { class: "quiet", type: "button", onclick: () => {
    form();
    main.querySelector("input").focus();
  } }, "Change my answer");
  put(heading("Thank you"), said("Your answer", given), again, about(false));
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
      : el("p", {}, "Talk to somebody who answered otherwise. What convinces you?"), about(false));
  say("The counts are shown.");
}

function revealed() {
  put(heading(room.question.text), el("p", { class: "measured" }, "Measured: ",
    ...rich(room.results.measured), "."), ours(), results(room.results),
    el("button", { class: "quiet", type: "button", onclick: keep }, `What to keep of trap ${room.trap}`),
    el("section", { id: "keep" }));
  say(`Measured: ${room.results.measured}`);
}

async function keep() {
  const answer = await fetch(`keep/${room.trap}`).catch(() => null);
  if (!answer?.ok) return;
  document.getElementById("keep").replaceChildren(...nodes((await answer.json()).html));
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

fetch("me").then((answer) => (answer.ok ? follow() : join()), follow);
