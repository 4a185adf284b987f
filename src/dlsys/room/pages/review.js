// A change under review, for both pages: its lines, what a participant says of it, what was right.
import { count, el, LETTERS, option, rich } from "./room.js";
import { bars } from "./draw.js";

const KINDS = { "+": ["plus", "added"], "-": ["minus", "removed"], " ": ["same", "unchanged"] };
const place = ([, , file, at]) => `${file}:${at}`;

// ---- lines

// The lines of a diff; before(line, k) goes in front of one, or is null for a plain line.
export function lines(all, before = () => null) {
  return el("div", { class: "lines", tabindex: "0", role: "group", "aria-label": "Lines" },
    ...all.map((line, k) => {
      const [sign, text, file, at] = line;
      if (sign === "@") return el("p", { class: "file" }, file);
      const [kind, word] = KINDS[sign], first = before(line, k);
      return el(first?.matches("input") ? "label" : "div", { class: `line ${kind}` },
        el("span", { class: "at" }, first, el("span", { class: "unseen" }, `${word}, `),
          el("span", { class: "no" }, sign === "-" ? "" : at), el("span", {}, sign)),
        el("code", {}, text));
    }));
}

const mark = (line) => el("input", { type: "radio", name: "mark", value: place(line),
  required: "" });

// ---- what both pages say of a change

export const about = ({ text, author }) => [el("p", {}, ...rich(text)),
  el("p", { class: "soft" }, `By ${author}.`)];

export function run(found) {
  if (!found) return [];
  const { name, what, stopped, rows } = found;
  const title = el("h2", {}, `Recorded run: ${name}`);
  if (stopped) return [title, el("p", {}, `With the change, this run stops: ${stopped}`)];
  const moved = rows.filter(([, , , differs]) => differs);
  const same = rows.filter(([, , , differs]) => !differs).map(([label, before]) =>
    `${label} ${before}`);
  return [title, el("p", { class: "soft" }, what),
    moved.length ? grid(["What differs", "before", "after"], moved.map((row) => row.slice(0, 3)))
      : el("p", {}, "No number differs."),
    same.length ? el("p", { class: "soft" }, `The same before and after: ${same.join("; ")}.`) : null]
    .filter(Boolean);
}

// A table whose first column names the rows.
function grid(heads, rows) {
  return el("div", { class: "wide", tabindex: "0" }, el("table", {},
    el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, ...rows.map(([first, ...others]) => el("tr", {},
      el("th", { scope: "row" }, ...rich(first)), ...others.map((text) => el("td", {}, text)))))));
}

// ---- a participant's form

const ACCUSED = 50; // above it, a change is called faulty
const SURE = [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100];

// send({ mark, confidence, consequence }, problem) is called once all are chosen. The consequences
// come last: they would say where to look.
export function form(change, given, send) {
  const problem = el("p", { class: "problem", role: "alert" });
  const options = [...change.consequences, change.nothing];
  const later = el("fieldset", {}, el("legend", {}, "What would somebody notice?"),
    ...options.map((text, k) =>
      option("consequence", (k + 1) % options.length, rich(text), LETTERS[k])));
  const node = el("form", { class: "review" },
    el("fieldset", {}, el("legend", {}, "Mark the line at fault"), lines(change.lines, mark),
      elsewhere(), option("mark", "none", ["Nothing is wrong"])),
    el("fieldset", {}, el("legend", {}, "How likely is it that this change is faulty, in %?"),
      el("div", { class: "chips" }, ...SURE.map((n) => option("confidence", n, [`${n}`]))),
      el("p", { class: "soft" }, "0: certainly healthy. 100: certainly faulty.")),
    later, el("button", {}, "This is my answer"), problem);
  const chosen = (name) => node.querySelector(`input[name=${name}]:checked`)?.value;
  const go = () => {
    later.hidden = later.disabled = !(chosen("mark") && chosen("confidence"));
  };
  if (given) fill(node, given);
  go();
  node.addEventListener("change", go);
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    const doubt = contradiction(chosen("mark") === "none", chosen("confidence"));
    if (doubt && !node.dataset.asked) {
      node.dataset.asked = "1";
      problem.textContent = `${doubt}, or send it as it is.`;
      return;
    }
    send({ mark: chosen("mark"), confidence: chosen("confidence"),
      consequence: chosen("consequence") }, problem);
  });
  return node;
}

// What to settle where the mark says one thing and the confidence the opposite; "" where they agree.
function contradiction(nothing, confidence) {
  if (nothing && confidence > ACCUSED)
    return "You marked nothing, and you think that the change is faulty. Mark a line, lower your "
      + "confidence";
  if (!nothing && confidence < ACCUSED)
    return "You marked a line, and you think that the change is healthy. Choose Nothing is wrong, "
      + "raise your confidence";
  return "";
}

// Choose again what somebody had answered, so that one part of it can be changed.
function fill(node, { mark: said, confidence, consequence }) {
  const find = (name, value) => node.querySelector(`input[name=${name}][value="${value}"]`);
  if (!find("mark", said || "none"))
    find("mark", "none").closest("label").before(option("mark", said, [said]));
  for (const [name, value] of [["mark", said || "none"], ["confidence", confidence],
    ["consequence", consequence]]) {
    const found = find(name, value);
    if (found) found.checked = true;
  }
}

// All files after the change: a line may be missing in one that the change does not touch.
function elsewhere() {
  const files = el("div", {});
  const node = el("details", {}, el("summary", {}, "A different place, in any file"), files);
  node.addEventListener("toggle", async () => {
    if (!node.open || files.childElementCount) return;
    const answer = await fetch("files").catch(() => null);
    if (!answer?.ok) {
      files.textContent = "The files did not arrive. Close this and open it again.";
      return;
    }
    files.replaceChildren(...Object.entries(await answer.json()).map(([name, text]) =>
      file(name, text)));
  });
  return node;
}

function file(name, text) {
  const node = el("details", {}, el("summary", {}, name));
  node.addEventListener("toggle", () => {
    if (node.childElementCount === 1)
      node.append(lines(text.trimEnd().split("\n").map((line, k) => [" ", line, name, k + 1]),
        mark));
  });
  return node;
}

// What somebody answered, in words.
export function said(given, { consequences, nothing }) {
  const options = [...consequences, nothing];
  const k = (given.consequence || options.length) - 1;
  return el("p", { class: "said" }, `Your answer: ${given.mark || "nothing is wrong"}, `
    + `${given.confidence} % sure that it is faulty. ${LETTERS[k]}: `, ...rich(options[k]),
    given.right === undefined ? null
      : el("strong", { class: "tick" }, given.right ? " ✓ marked right" : " ✗ marked wrong"));
}

// ---- once it is closed

// The lines with how many marked each, and what the class said, as two lists of nodes: a wall
// shows them side by side.
export function outcome(results, change) {
  const { marks, places, near } = results, most = Math.max(1, ...Object.values(marks));
  const shown = new Map(); // the line that represents a place: a removed one only if there is no other
  change.lines.forEach((line, k) => {
    if (line[0] !== "@" && (line[0] !== "-" || !shown.has(place(line)))) shown.set(place(line), k);
  });
  const before = (line, k) => {
    const here = place(line), mine = shown.get(here) === k;
    return gauge(mine ? marks[here] : 0, most, mine && places.includes(here));
  };
  const others = Object.entries(marks).filter(([at]) => at && !shown.has(at))
    .sort((a, b) => b[1] - a[1]).map(([at, n]) => `${at} (${n})`);
  const away = places.filter((at) => !shown.has(at));
  return [[el("h2", { class: "unseen" }, "Who marked which line"), lines(change.lines, before),
    others.length ? el("p", { class: "soft" }, `Marked elsewhere: ${others.join(", ")}.`) : null,
    ...(results.repair.length ? [el("h2", {}, "The repair"), lines(results.repair)] : [])],
  [el("p", { class: "heading" }, el("strong", {}, results.heading)),
    places.length ? el("p", {}, away.length ? "The place is not in the diff: " : "The place: ",
      ...rich(places.map((at) => `\`${at}\``).join(" or ")),
      `. A mark up to ${count(near, "line")} away counts.`) : null,
    el("p", { class: "measured" }, `${results.measured}`),
    sure(results), el("h2", {}, "What somebody notices"), bars(results),
    el("p", {}, ...rich(`${results.why} Modelled on ${results.source}.`))]].map((part) => part.filter(Boolean));
}

// How many marked a line, as a number and a bar; a tick where it is the place.
function gauge(n, most, right) {
  const bar = el("span", { class: "track", "aria-hidden": "true" }, el("span", { class: "sure" }));
  bar.firstChild.style.width = `${(100 * (n || 0)) / most}%`;
  return el("span", { class: "gauge" }, n ? bar : null,
    el("strong", { class: "n" }, n || "", el("span", { class: "unseen" }, n ? " marked it " : "")),
    el("span", { class: "tick" }, right ? "✓" : "", el("span", { class: "unseen" },
      right ? "the right place " : "")));
}

function sure({ right, counts: [all], marks, sure: [yes, no], faulty, accused }) {
  const mean = (n) => (n === null ? "" : `, on average ${Math.round(n)} % sure that it is faulty`);
  return el("ul", { class: "counts" },
    el("li", {}, el("strong", {}, right), ` of ${all} marked it right${mean(yes)}.`),
    el("li", {}, el("strong", {}, all - right), ` marked it wrong${mean(no)}.`),
    faulty ? el("li", {}, el("strong", {}, marks[""] ?? 0), " said that nothing is wrong.")
      : el("li", {}, el("strong", {}, accused), " accused it: more than 50 % sure."));
}

// ---- the score

const SCORED = [["placed", "marked the place of a fault"], ["named", "named its consequence"],
  ["accused", "accused a healthy change, being more than 50 % sure"]];

export function score(found, whose) {
  const { answers, changes, auroc } = found;
  return [el("p", { class: "big" }, `AUROC ${whose}: `, el("strong", {}, auroc === null ? "–"
    : auroc.toFixed(2)), `, from ${count(answers, "answer")} to ${count(changes, "change")}.`),
  el("p", { class: "soft" }, auroc === null
    ? "It needs answers to a faulty and to a healthy change."
    : "How often an answer to a faulty change was more sure of a fault than one to a healthy "
      + "change. Guessing gives 0.50."),
  el("ul", { class: "counts" }, ...SCORED.filter(([name]) => found[name][1]).map(([name, words]) =>
    el("li", {}, el("strong", {}, found[name][0]), ` of ${found[name][1]} ${words}.`)))];
}

export function table(rows) {
  const percent = (n) => (n === null ? "–" : `${Math.round(n)} %`);
  return grid(["Change", "It was", "Marked right", "Sure of a fault, if right", "if wrong"],
    rows.map((row) => [`${row.change} ${row.title}`, WAS[row.kind],
      `${row.marked_right} of ${row.answers}`, percent(row.confidence_right),
      percent(row.confidence_wrong)]));
}
const WAS = { healthy: "healthy", changed: "faulty", omitted: "faulty, incomplete" };
