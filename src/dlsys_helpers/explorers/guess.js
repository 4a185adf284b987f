// A guess before a trap: one question, its answers and how sure. In JupyterLab the kernel keeps
// the guess, on a page the browser does, and there what follows the question waits for it.

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const name in attributes) node.setAttribute(name, attributes[name]);
  node.append(...children);
  return node;
}

// JupyterLab takes the keys unless the focused element itself says no.
const KEYS = { "data-lm-suppress-shortcuts": "true" };

// Text whose `code` keeps its face.
const rich = (text) =>
  text.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));

// ---- the form ---------------------------------------------------------------------------------
function radio(name, value, text) {
  const input = el("input", { ...KEYS, type: "radio", name, value, required: "" });
  return el("label", { class: "gs-option" }, input, el("span", {}, ...rich(text)));
}

const fieldset = (legend, kind, ...children) =>
  el("fieldset", { class: kind }, el("legend", {}, ...rich(legend)), ...children);

// A number as people write it: a comma is a decimal sign, as a point is, on every phone. A comma
// before three digits may be either. `why` says what to do where it is none; as in the room's
// class.js.
function read(text) {
  const written = text.trim().replace(/^\u2212/, "-");
  if (/^-?[1-9]\d{0,2},\d{3}$/.test(written))
    return { why: `${written} may be ${written.replace(",", "")} or ${written.replace(",", ".")}. `
      + "Write the one that you mean, with a point or without a separator." };
  if (!/^[-+]?(\d+([.,]\d*)?|[.,]\d+)(e[-+]?\d{1,3})?$/i.test(written))
    return { why: "Write only digits, with one comma or point before the decimals: 5,5 or 5.5, "
      + "but 1000 without a separator." };
  return { why: "", value: Number(written.replace(",", ".")) };
}

function number(unit) {
  const input = el("input", { ...KEYS, type: "text", name: "guess", inputmode: "decimal",
    autocomplete: "off", maxlength: "30", required: "" });
  input.addEventListener("input",
    () => input.setCustomValidity(input.value ? read(input.value).why : ""));
  return el("label", { class: "gs-number" }, el("span", {}, "Your guess"), input,
    el("span", {}, ...rich(unit)));
}

function form(question, onGuess) {
  const { text, choices, unit } = question;
  const answers = choices.length ? choices.map((c, i) => radio("guess", i, c)) : [number(unit)];
  const node = el("form", { class: "gs-form" },
    fieldset(text, "gs-answers", ...answers),
    fieldset("How sure are you?", "gs-sure", radio("sure", "yes", "sure"),
      radio("sure", "no", "not sure")),
    el("button", { ...KEYS, class: "gs-button" }, "This is my guess"));
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    const filled = new FormData(node);
    const said = filled.get("guess");
    onGuess({ guess: choices.length ? choices[Number(said)] : read(said).value,
      sure: filled.get("sure") === "yes" });
  });
  return node;
}

// ---- what was said ----------------------------------------------------------------------------
const certainty = (sure) => (sure ? "sure" : "not sure");
const named = (guess, unit) =>
  typeof guess === "string" ? `\u201c${guess}\u201d` : `${guess}\u00a0${unit}`;

// The same sentence as in guesses.py.
function sentence({ guess, sure }, unit, measured) {
  return `You said ${named(guess, unit)} and were ${certainty(sure)}; ` +
    `measured ${measured.shown}${verdict(guess, unit, measured)}.`;
}

const plain = (number) =>
  number.toLocaleString("en-US", { maximumSignificantDigits: 12 });

// What ends the sentence: of a number with the band that counts, and how far it missed.
function verdict(guess, unit, { right, value }) {
  if (typeof right === "string") return guess === right ? ": right" : "";
  const [low, high] = right;
  const hit = low <= guess && guess <= high;
  const way = guess < low ? "too low" : "too high";
  // Where one number alone is right, it is what was measured.
  if (low === high) return hit ? ": right" : `: ${missed(guess, value, way)}`;
  const band = `${plain(low)} to ${plain(high)}\u00a0${unit}`.trim();
  return hit ? `: right, as is ${band}` : `, right from ${band}: ${missed(guess, value, way)}`;
}

function missed(guess, value, way) {
  if (!value || guess <= 0 || value <= 0) return way;
  const factor = Math.max(guess, value) / Math.min(guess, value);
  const times = factor < 9.95 ? plain(Math.floor(factor * 10 + 0.5) / 10)
    : plain(Math.floor(factor + 0.5));
  return factor >= 1.1 ? `${times} times ${way}` : way;
}

function said(question, { guess, sure }, onAgain) {
  const again = el("button", { ...KEYS, type: "button", class: "gs-button gs-quiet" },
    "Guess again");
  again.addEventListener("click", onAgain);
  const text = `Your guess: ${named(guess, question.unit)}, ${certainty(sure)}.`;
  return [el("p", { class: "gs-question" }, ...rich(question.text)),
    el("p", { class: "gs-said", role: "status", tabindex: "-1" }, ...rich(text)), again];
}

// The form, or the guess that was made. `keep` is called with { guess, sure }; `more` are nodes
// below the form.
function draw(root, question, guess, keep, more = []) {
  const ask = () => {
    root.replaceChildren(form(question, answer), ...more);
    root.querySelector("input").focus();
  };
  // The button that was pressed is gone: without this the keyboard starts again at the top.
  const answer = (made) => {
    keep(made);
    root.replaceChildren(...said(question, made, ask));
    root.querySelector(".gs-said").focus();
  };
  root.classList.add("xp", "gs");
  const has = guess?.guess !== undefined;
  root.replaceChildren(...(has ? said(question, guess, ask) : [form(question, answer), ...more]));
}

// ---- in JupyterLab: anywidget calls this for every view ----------------------------------------
// A learner's copy folds the steps that answer a question: its guess opens them, up to the next
// trap, but for what is beside its line. A press on the button of a folded heading keeps the
// notebook's own record of it right.
function unfold(root) {
  let cell = root.closest(".jp-Cell");
  while ((cell = cell?.nextElementSibling) && !cell.querySelector("h1, h2"))
    if (!cell.querySelector("h3, h4")?.textContent.startsWith("More"))
      cell.querySelector(".jp-showHiddenCellsButton")?.click();
}

function render({ model, el: root }) {
  draw(root, model.get("question"), model.get("said"), (made) => {
    model.set("said", made);
    model.save_changes();
    unfold(root);
  }, [el("p", { class: "gs-note" }, "The cells below hold the answer: guess before you run them.")]);
}

// ---- on a page --------------------------------------------------------------------------------
const EVERYTHING = "dlsys-show-everything";
const key = (id) => `dlsys-guess-${id}`;

// A browser may forbid a page to keep anything; the guess then counts until the page is left.
function storage() {
  try {
    return window.localStorage;
  } catch {
    const kept = {};
    return { getItem: (k) => kept[k] ?? null, setItem: (k, v) => (kept[k] = v) };
  }
}

function mount(root, store) {
  const question = JSON.parse(root.dataset.guess);
  // A question that stands alone, as in Your model, has nothing that waits for it.
  const asked = root.closest(".pair");
  const answers = asked?.nextElementSibling;
  const open = () => [asked, answers].forEach((part) => part?.classList.add("gs-open"));
  const compare = (guess) => document.querySelectorAll("[data-measured]").forEach((node) => {
    const measured = JSON.parse(node.dataset.measured);
    if (measured.id === question.id)
      node.replaceChildren(...rich(sentence(guess, question.unit, measured)));
  });
  const keep = (guess) => {
    store.setItem(key(question.id), JSON.stringify(guess));
    compare(guess);
    open();
  };
  // The answer comes into sight below the guess, which keeps the focus.
  const made = (guess) => {
    keep(guess);
    if (answers) begin(answers).scrollIntoView({ block: "nearest" });
  };
  const skip = el("button", { type: "button", class: "gs-button gs-quiet gs-skip" },
    "Show it without a guess");
  skip.addEventListener("click", () => {
    open();
    begin(answers).focus();
  });
  const kept = JSON.parse(store.getItem(key(question.id)));
  const { choices } = question; // they may have changed since
  const earlier = kept && (choices.length ? choices.includes(kept.guess) : !isNaN(kept.guess))
    ? kept : null;
  draw(root, question, earlier, made, answers ? [skip] : []);
  if (earlier) keep(earlier);
}

// The name of the first step that a guess opens; it can be given the focus.
function begin(answers) {
  const first = answers.querySelector(".step-name") ?? answers;
  first.tabIndex = -1;
  return first;
}

// An address that leads into a part that still waits opens it.
function follow() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target || target.checkVisibility()) return;
  for (const part of [target.closest(".waits"), target.closest(".waits")?.previousElementSibling])
    part?.classList.add("gs-open");
  if (target.closest("details.more")) target.closest("details.more").open = true;
  target.scrollIntoView();
}

// The button at the top of a lesson; html.guess-first is set before anything is drawn.
function everything(button, store) {
  const page = document.documentElement.classList;
  const show = () => {
    button.textContent = page.contains("guess-first") ? "Show all answers" : "Hide them again";
  };
  button.addEventListener("click", () => {
    page.toggle("guess-first");
    store.setItem(EVERYTHING, page.contains("guess-first") ? "no" : "yes");
    show();
  });
  show();
}

// Paper shows everything; before the explorers are asked to draw, hence the capture.
function unfoldForPaper() {
  const page = document.documentElement.classList;
  let waits = false;
  let folded = [];
  const open = (is) => folded.forEach((fold) => (fold.open = is));
  window.addEventListener("beforeprint", () => {
    waits = page.contains("guess-first");
    page.remove("guess-first");
    folded = document.querySelectorAll("details.more:not([open])");
    open(true);
  }, { capture: true });
  window.addEventListener("afterprint", () => {
    page.toggle("guess-first", waits);
    open(false);
  });
}

function mountAll() {
  unfoldForPaper();
  const store = storage();
  document.querySelectorAll("[data-guess]").forEach((root) => mount(root, store));
  document.querySelectorAll("[data-everything]").forEach((node) => everything(node, store));
  window.addEventListener("hashchange", follow);
  follow();
}

export { sentence };
export default { render };
