// Review of changes: shows a change, reads mark, confidence, consequence and repair in this order, and
// tells what was right after the last of them. Scores as dlsys_diffs/scoring.py does.
"use strict";
(() => {
  const root = document.getElementById("diffs");
  const data = window.dlsysDiffs;
  if (!root || !data) return;
  const KEY = "dlsys-diffs";
  const RUNS = "dlsys-diffs-runs"; // which run was shown for a change
  const { make, written, button, group, radio, said: status, chosen, kept: entries, keep: store } = window.dlsysForm(root);
  const ACCUSED = 50;

  // ---- what is kept

  const kept = () => entries(KEY, whole);

  const within = (value, low, high) => Number.isInteger(value) && value >= low && value <= high;
  const whole = (one) => one && typeof one.id === "string" && typeof one.mark === "string" &&
    within(one.confidence, 0, 100) && within(one.consequence, -1, 2) && within(one.repair, -1, 2);

  function reviews() {
    const found = new Map();
    for (const one of kept()) {
      const change = data.cases.find((item) => item.id === one.id && item.digest === one.digest);
      if (change && !found.has(one.id)) found.set(one.id, { ...one, change, truth: truth(change) });
    }
    return found;
  }

  const keep = (answer) => store(KEY, [...kept(), answer]);
  const isRun = (one) => one && typeof one.id === "string" && Object.hasOwn(data.runs, one.run);
  const shownRuns = []; // of this visit: a browser may keep nothing
  const runOf = (change) => [...entries(RUNS, isRun), ...shownRuns].find((one) => one.id === change.id && one.digest === change.digest)?.run;

  function keepRun(change, run) {
    const shown = { id: change.id, digest: change.digest, run };
    shownRuns.push(shown);
    store(RUNS, [...entries(RUNS, isRun), shown]);
  }

  const truth = (change) => JSON.parse(atob(change.packed));

  // ---- elements

  function shuffled(list) {
    const found = [...list];
    for (let n = found.length - 1; n > 0; n--) {
      const other = Math.floor(Math.random() * (n + 1));
      [found[n], found[other]] = [found[other], found[n]];
    }
    return found;
  }

  function choice(names, label) {
    const select = make("select", "", { "aria-label": label });
    for (const [value, text] of names) select.append(make("option", text, { value }));
    return select;
  }

  // ---- a change

  function after(change) {
    const files = { ...data.files };
    for (const [file, old, fresh] of change.edits) files[file] = files[file].split(old).join(fresh);
    return files;
  }

  function diffLines(change) {
    const lines = make("div", "", { class: "lines", tabindex: "0", role: "radiogroup", "aria-label": "Lines of the change" });
    const names = { "+": "plus", "-": "minus", " ": "same" };
    const words = { "+": "added", "-": "removed", " ": "unchanged" };
    for (const [sign, text, file, at] of change.diff) {
      if (sign === "@") {
        lines.append(make("div", text, { class: "place" }));
        continue;
      }
      const line = radio("mark", `${file}:${at}`, `${(sign === "-" ? "" : String(at)).padStart(4)} ${sign} ${text}`, names[sign]);
      line.firstChild.setAttribute("aria-label", `${words[sign]}, ${file} line ${at}: ${text.trim()}`);
      lines.append(line);
    }
    return lines;
  }

  function missingLine(files, said) {
    const file = choice(Object.keys(files).map((name) => [name, name]), "File of the other place");
    const line = make("input", "", { type: "number", min: "1", "aria-label": "Line of the other place" });
    const option = radio("mark", "missing", "A different place, where a line is wrong or missing:", "option");
    for (const field of [file, line]) {
      field.addEventListener("input", () => { option.firstChild.checked = true; });
    }
    const row = make("div", "", { class: "fields" });
    row.append(option, file, make("span", "line"), line);
    row.read = () => {
      const count = files[file.value].split("\n").length - 1;
      const number = Number(line.value);
      if (line.value === "" || !within(number, 1, count)) {
        said.textContent = `Line of ${file.value}: got ${line.value || "nothing"}, expected 1 to ${count}.`;
        return null;
      }
      return `${file.value}:${number}`;
    };
    return row;
  }

  function fileViews(files) {
    const all = make("details");
    all.append(make("summary", "Read the repository after the change"));
    for (const [name, text] of Object.entries(files)) {
      const one = make("details");
      one.append(make("summary", name));
      one.addEventListener("toggle", () => {
        if (one.querySelector("pre")) return;
        const lines = text.replace(/\n$/, "").split("\n");
        one.append(make("pre", lines.map((line, n) => `${String(n + 1).padStart(4)}  ${line}`).join("\n"), { tabindex: "0" }));
      }, { once: true });
      all.append(one);
    }
    return all;
  }

  const number = (value) => (typeof value === "number" ? String(Number(value.toPrecision(4))) : value);

  function runTable(change, run) {
    const before = data.before[run];
    const other = change.after[run];
    if (other.stopped) return make("p", `With the change, this run stops: ${other.stopped}`);
    const numbers = { ...before.numbers, ...(other.numbers || {}) };
    const table = make("table");
    const head = make("tr");
    for (const text of ["number", "before", "after", "moved"]) head.append(make("th", text, { scope: "col" }));
    table.append(head);
    for (const [name, value] of Object.entries(numbers)) {
      const old = before.numbers[name];
      const row = make("tr");
      row.append(make("th", name, { scope: "row" }), make("td", number(old ?? "-")), make("td", number(value)),
        make("td", old === value ? "" : "differs", { class: "differs" }));
      table.append(row);
    }
    const found = make("div");
    found.append(table);
    for (const [name, values] of Object.entries(before.curves)) {
      const changed = (other.curves || {})[name];
      const step = Math.max(1, Math.floor((values.length - 1) / 11));
      const thin = (list) => list.filter((_, n) => n % step === 0).map(number).join(" ");
      found.append(make("p", `${name}, before: ${thin(values)}`), make("p", `${name}, after: ${changed ? thin(changed) : "the same"}`));
    }
    return found;
  }

  function oneRun(change, state) {
    const names = Object.entries(data.runs).map(([name, what]) => [name, `${name}: ${what}`]);
    const select = choice(names, "Recorded run");
    const shown = make("div", "", { role: "status" });
    const reveal = (run) => {
      state.run = select.value = run;
      shown.replaceChildren(runTable(change, run));
      press.disabled = select.disabled = true;
    };
    const press = button("Show this run", () => {
      keepRun(change, select.value);
      reveal(select.value);
    });
    const row = make("div", "", { class: "fields" });
    row.append(select, press);
    if (runOf(change)) reveal(runOf(change)); // opening a change again gives no second run
    return group("One recorded run, if you want it", row, shown);
  }

  function show(change) {
    const state = { run: "" };
    const files = after(change);
    const said = status();
    const missing = missingLine(files, said);
    const sure = make("input", "", { type: "number", min: "0", max: "100", "aria-label": "Confidence that the change is faulty, 0 to 100" });
    const sureRow = make("div", "", { class: "fields" });
    sureRow.append(sure, make("span", "%. 0: certainly healthy. 100: certainly faulty."));
    const rest = make("div");
    const go = button("That is my mark", () => {
      let mark = chosen("mark");
      if (mark === undefined) {
        said.textContent = "Mark: got nothing, expected a line, another place or none.";
        return;
      }
      if (mark === "missing") mark = missing.read();
      if (mark === null) return;
      if (sure.value === "" || !within(Number(sure.value), 0, 100)) {
        said.textContent = `Confidence: got ${sure.value || "nothing"}, expected a whole number from 0 to 100.`;
        return;
      }
      said.textContent = "";
      for (const field of root.querySelectorAll(".first input, .first select, .first button")) field.disabled = true;
      const answer = { ...state, mark, confidence: Number(sure.value) };
      if (!mark && answer.confidence <= ACCUSED) finish(change, { ...answer, consequence: -1, repair: -1 }, rest); // called healthy
      else askRest(change, answer, rest);
    });
    const first = make("div", "", { class: "first" });
    first.append(group("The change. Mark the line at fault", diffLines(change), missing, radio("mark", "", "None: nothing is at fault", "option")),
      oneRun(change, state), group("How likely is it that this change is faulty?", sureRow), go, said);
    body.replaceChildren(written("h2", change.title, { tabindex: "-1" }), written("p", change.text), fileViews(files), first, rest);
    body.firstChild.focus();
  }

  function askRest(change, answer, place) {
    const said = status();
    const options = (name, texts, nothing, kind) => [...shuffled(texts.map((text, n) => radio(name, n, text, `option ${kind}`, kind ? make : written))),
      radio(name, -1, nothing, "option")];
    const repairs = make("div");
    const next = button("That is what somebody notices", () => {
      if (chosen("consequence") === undefined) {
        said.textContent = "Consequence: got nothing, expected one of them.";
        return;
      }
      said.textContent = "";
      next.disabled = true;
      const done = button("That is my repair", () => {
        if (chosen("repair") === undefined) {
          said.textContent = "Repair: got nothing, expected one of them.";
          return;
        }
        done.disabled = true;
        finish(change, { ...answer, consequence: Number(chosen("consequence")), repair: Number(chosen("repair")) }, place);
      });
      repairs.append(group("Which edit, in any file, repairs it?", ...options("repair", change.repairs, "Leave it as it is", "code")), done);
      repairs.querySelector("input").focus();
    });
    place.replaceChildren(group("What would somebody notice?", ...options("consequence", change.consequences, "Nothing bad: the change is as it should be", "")), next, repairs, said);
    place.querySelector("input").focus();
  }

  const atPlace = (mark, right) => right.places.some(([file, line]) => {
    const [there, at] = mark.split(":");
    return there === file && Math.abs(Number(at) - line) <= right.near;
  });

  function finish(change, answer, place) {
    const right = truth(change);
    const again = reviews().has(change.id);
    const stored = keep({ ...answer, id: change.id, digest: change.digest, time: new Date().toISOString() });
    for (const field of place.querySelectorAll("input")) field.disabled = true;
    const head = { healthy: "This change is healthy.", changed: "A changed line is at fault.", omitted: "The change is incomplete." };
    const told = make("ul", "", { class: "told" });
    const tell = (good, text, instead = "") => told.append(written("li", `${good ? "✓ right" : "✗ wrong"}: ${text}${good || !instead ? "" : `\n${instead}`}`));
    const consequence = `You chose: ${answer.consequence === -1 ? "nothing bad." : change.consequences[answer.consequence]}`;
    const repair = `You chose: ${answer.repair === -1 ? "leave it as it is." : change.repairs[answer.repair]}`;
    if (right.kind === "healthy") {
      tell(answer.confidence <= ACCUSED, `you were ${answer.confidence} % sure that it is faulty.`);
      tell(answer.consequence === -1, "there is nothing bad to notice.", consequence);
      tell(answer.repair === -1, "it needs no repair.", repair);
    } else {
      tell(atPlace(answer.mark, right), `the place is ${right.places.map(([file, line]) => `${file}, line ${line}`).join(" or ")}.`, `You marked ${answer.mark || "none"}.`);
      tell(answer.consequence === right.consequence, change.consequences[right.consequence], consequence);
      tell(answer.repair === right.repair, `the repair:\n${change.repairs[right.repair]}`, repair);
      told.append(make("li", right.measured));
    }
    told.append(written("li", `Why: ${right.why}`));
    const [repository, item] = right.source.split("#");
    const source = make("p", "Modelled on ");
    source.append(make("a", right.source, { href: `https://github.com/${repository}/issues/${item}` }), ".");
    const verdict = make("div", "", { role: "status" });
    verdict.append(make("h2", head[right.kind], { tabindex: "-1" }), told, source);
    if (again) verdict.append(make("p", "You had reviewed this change before; only your first answer counts."));
    if (!stored) verdict.append(make("p", "Your browser keeps nothing for this page, so this answer does not count in your score."));
    verdict.append(button("Next change", () => show(upcoming())));
    place.append(verdict);
    verdict.querySelector("h2").focus();
    overview();
  }

  // ---- the score

  function auroc(faulty, healthy) {
    let sum = 0;
    for (const a of faulty) for (const b of healthy) sum += (a > b) + (a === b) / 2;
    return faulty.length && healthy.length ? sum / (faulty.length * healthy.length) : null;
  }

  function scoreLines(found) {
    const faulty = found.filter((one) => one.truth.kind !== "healthy");
    const healthy = found.filter((one) => one.truth.kind === "healthy");
    const count = (list, test) => `${list.filter(test).length} of ${list.length}`;
    const fixed = (one) => one.repair === one.truth.repair;
    const area = auroc(faulty.map((one) => one.confidence), healthy.map((one) => one.confidence));
    return [`${found.length} of ${data.cases.length} changes reviewed.`,
      area === null ? "AUROC of your confidence: needs a faulty and a healthy change." : `AUROC of your confidence: ${area.toFixed(2)} (guessing: 0.50).`,
      `Repaired at the first attempt: ${count(faulty, fixed)}; where a changed line was at fault: ${count(faulty.filter((one) => one.truth.kind === "changed"), fixed)}; where the change was incomplete: ${count(faulty.filter((one) => one.truth.kind === "omitted"), fixed)}.`,
      `Place of the fault marked: ${count(faulty, (one) => atPlace(one.mark, one.truth))}. Consequence named: ${count(faulty, (one) => one.consequence === one.truth.consequence)}.`,
      `Healthy changes accused: ${count(healthy, (one) => one.confidence > ACCUSED)}.`];
  }

  function upcoming() {
    const done = reviews();
    const asked = data.cases.filter((change) => form.value === "" || change.form === form.value);
    return asked.find((change) => !done.has(change.id)) || asked[0];
  }

  function overview() {
    const done = reviews();
    select.replaceChildren(...data.cases.map((change) => make("option",
      `${done.has(change.id) ? "✓ " : ""}${change.title} (form ${change.form})`, { value: change.id })));
    const found = [...done.values()].filter((one) => form.value === "" || one.change.form === form.value);
    score.replaceChildren(...(found.length ? scoreLines(found) : ["You have not reviewed any change yet."]).map((text) => make("p", text)));
  }

  const form = choice([["", "both forms"], ["a", "form a"], ["b", "form b"]], "Form");
  const select = choice([], "Change");
  const score = make("div");
  const body = make("div");
  const top = make("div", "", { class: "fields" });
  top.append(form, button("Next change", () => show(upcoming())), select,
    button("Open", () => show(data.cases.find((change) => change.id === select.value))));
  form.addEventListener("change", overview);
  const yours = make("details");
  yours.append(make("summary", "Your score so far"), score);
  root.replaceChildren(top, yours, body);
  overview();
})();
