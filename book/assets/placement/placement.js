// Placement: asks twelve to fifteen questions and divides the core path into what to take and what to
// skip, by the model of dlsys/placement_model.py, whose numbers come with the questions.
"use strict";
(() => {
  const root = document.getElementById("placement");
  const data = window.dlsysPlacement;
  if (!root || !data) return;
  const KEY = "dlsys-placement";
  const { items, model } = data;
  const { written, button, group, radio, said: status, chosen, kept, keep } = window.dlsysForm(root);

  // ---- the model

  let state = 48;
  function uniform() { // mulberry32
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  }
  const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());

  function learner() {
    const level = model.level * normal();
    const stages = {};
    for (const [stage, needs] of model.needs) {
      const lean = needs.length ? needs.reduce((sum, one) => sum + stages[one], 0) / needs.length : 0;
      stages[stage] = model.leans * lean + model.of_stage * normal();
    }
    return items.map((item) => 1 / (1 + Math.exp(-(level + stages[item.stage] - model.step * (item.difficulty - model.middle)))));
  }
  const draws = Array.from({ length: 800 }, learner);

  const luck = (options, sure) => (sure ? 1 : 2) * (options ? 1 / options : model.luck);
  function seen(answer) {
    if (answer.skipped) return [0.05, 0.6];
    const item = items.find((one) => one.id === answer.id);
    const lucky = Math.min(luck(item.options.length, answer.sure), 0.6);
    return answer.right ? [model.slips_not, lucky] : [1 - model.slips_not, 1 - lucky];
  }

  function belief(answers) {
    const weights = new Float64Array(draws.length).fill(1);
    const own = new Set();
    const each = draws.map((p) => Float64Array.from(p));
    for (const answer of answers) {
      const n = items.findIndex((one) => one.id === answer.id);
      const [known, unknown] = seen(answer);
      draws.forEach((p, k) => {
        const both = p[n] * known + (1 - p[n]) * unknown;
        weights[k] *= both;
        each[k][n] = p[n] * known / both;
      });
      own.add(n);
    }
    const sum = weights.reduce((a, b) => a + b);
    const known = items.map((_, n) => each.reduce((found, p, k) => found + weights[k] / sum * p[n], 0));
    return { weights: weights.map((w) => w / sum), each, known, own };
  }

  const doubt = (known) => known.reduce((sum, p, n) => sum + p * (1 - p) * items[n].minutes, 0);

  function left(now, n) {
    let found = 0;
    const { slips_not: right, luck: lucky } = model;
    for (const [a, b] of [[right, lucky], [1 - right, 1 - lucky]]) {
      const known = new Float64Array(items.length);
      let mass = 0;
      let own = 0;
      now.each.forEach((p, k) => {
        const w = now.weights[k] * (p[n] * a + (1 - p[n]) * b);
        mass += w;
        own += now.weights[k] * p[n] * a;
        for (let u = 0; u < known.length; u++) known[u] += w * p[u];
      });
      known[n] = own;
      found += mass * doubt([...known].map((p) => p / mass));
    }
    return found;
  }

  function next(answers) {
    const now = belief(answers);
    const open = items.map((_, n) => n).filter((n) => !now.own.has(n));
    if (answers.length >= model.most || !open.length) return null;
    const after = open.map((n) => left(now, n));
    const best = after.indexOf(Math.min(...after));
    const before = doubt(now.known);
    return answers.length >= model.least && before - after[best] < model.enough * before ? null : items[open[best]];
  }

  // ---- what is kept

  const whole = (one) => one && items.some((item) => item.id === one.id) &&
    ["right", "sure", "skipped"].every((name) => typeof one[name] === "boolean");
  let mine = kept(KEY, whole).slice(0, model.most);

  // ---- what was typed

  function number(typed) {
    const found = /^([-+]?[\d.]+(?:e[-+]?\d+)?)(?:\/([\d.]+(?:e[-+]?\d+)?))?$/i.exec(typed.trim().replace(/(\d),(?=\d{3}(?!\d))/g, "$1"));
    const value = found ? Number(found[1]) / Number(found[2] || 1) : NaN;
    return Number.isFinite(value) ? value : null;
  }

  // ---- questions and result

  function ask() {
    const item = next(mine);
    if (!item) return tell();
    const truth = JSON.parse(atob(item.packed));
    const said = status();
    const field = written("input", "", { type: "text", "aria-label": "Your answer", autocomplete: "off" });
    const answer = item.options.length ? item.options.map((text, n) => radio("answer", n + 1, text, "option", written)) : [written("p", item.form), field];
    const done = (entry) => {
      mine.push({ id: item.id, right: false, sure: false, skipped: false, ...entry });
      keep(KEY, mine);
      ask();
    };
    const go = button("That is my answer", () => {
      const value = item.options.length ? Number(chosen("answer") || NaN) : number(field.value);
      if (value === null || Number.isNaN(value)) {
        said.textContent = `Answer: got ${field.value ? `"${field.value.slice(0, 30)}"` : "nothing"}, expected: ${item.form}`;
        return;
      }
      if (!chosen("sure")) {
        said.textContent = "Sure: got nothing, expected one of the two.";
        return;
      }
      done({ right: Math.abs(value - truth.answer) <= truth.within * Math.abs(truth.answer), sure: chosen("sure") === "yes" });
    });
    const head = written("h2", `Question ${mine.length + 1} of ${model.least} to ${model.most}, stage ${item.stage}`, { tabindex: "-1" });
    root.replaceChildren(head, group(item.text, ...answer), group("Are you sure?", radio("sure", "yes", "Sure"), radio("sure", "no", "Not sure")),
      go, " ", button("I do not know", () => done({ skipped: true })), said);
    if (mine.length) head.focus();
  }

  function why(now, n, skip) {
    const item = items[n];
    const own = mine.find((one) => one.id === item.id);
    const against = own && own.right !== skip ? ", but your other answers speak against it" : "";
    if (own) return against ? `${own.right ? "you answered it right" : "you did not"}${against}` : own.skipped ? "you did not know it" : own.right ? "you answered it right" : own.sure ? "you were sure of a wrong answer" : "you answered it wrong";
    const needs = new Map(model.needs).get(item.stage);
    for (const [stages, words] of [[[item.stage], "of this stage"], [needs, "of what it builds on"]]) {
      const found = mine.filter((one) => stages.includes(Number(one.id.slice(0, 2))) && one.right === skip);
      if (found.length) return `${skip ? "known" : "not known"} ${words}: ${found.map((one) => one.id).join(", ")}`;
    }
    return `your answers to other stages ${skip ? "suggest it" : "leave it open"}`;
  }

  const time = (places) => {
    const minutes = places.reduce((sum, n) => sum + items[n].minutes, 0);
    return minutes < 120 ? `${minutes} minutes` : `${Math.round(minutes / 60)} hours`;
  };

  function list(title, places, now, skip) {
    const found = written("section");
    const rows = written("ul");
    for (const n of places) {
      const row = written("li");
      row.append(written("a", `${items[n].id} ${items[n].title}`, { href: items[n].page }), `, ${items[n].minutes} minutes: ${why(now, n, skip)}`);
      rows.append(row);
    }
    found.append(written("h2", `${title}, ${time(places)}`), rows);
    return found;
  }

  // A list for each stage, folded: its name and time first.
  function byStage(title, places, now, skip) {
    const found = written("section");
    found.append(written("h2", `${title}, ${time(places)}`));
    for (const stage of new Set(places.map((n) => items[n].stage))) {
      const ours = places.filter((n) => items[n].stage === stage);
      const name = `${stage} ${items[ours[0]].of}`;
      const folded = written("details");
      const rows = list(name, ours, now, skip).querySelector("ul");
      folded.append(written("summary", `${name}: ${ours.map((n) => items[n].id).join(", ")}, ${time(ours)}`), rows);
      found.append(folded);
    }
    return found;
  }

  function tell() {
    const now = belief(mine);
    const order = items.map((_, n) => n);
    const failed = (n) => mine.some((one) => one.id === items[n].id && !one.right);
    const take = order.filter((n) => now.known[n] < model.skip).sort((a, b) => failed(b) - failed(a) || a - b);
    const skip = order.filter((n) => now.known[n] >= model.skip);
    let spent = 0;
    const end = take.findIndex((n, k) => { spent += items[n].minutes; return k && spent > model.today; });
    const today = end < 0 ? take : take.slice(0, end);
    const head = written("h2", `${mine.filter((one) => one.right).length} of ${mine.length} right`, { tabindex: "-1" });
    const wrong = written("ul");
    for (const one of mine.filter((each) => !each.right)) {
      const item = items.find((each) => each.id === one.id);
      const truth = JSON.parse(atob(item.packed));
      wrong.append(written("li", `${item.id}: ${item.text} Computed: ${truth.shown}. ${truth.why}`));
    }
    root.replaceChildren(head);
    if (today.length) root.append(list("Today", today, now, false));
    if (today.length && items[today[0]].minutes > model.today) root.append(written("p", `No trap that you need first fits into ${model.today} minutes. You can take this one in two parts: stop after its repair.`));
    const later = take.slice(today.length).sort((a, b) => a - b);
    if (later.length) root.append(byStage("After that", later, now, false));
    if (skip.length) root.append(byStage("Skip, since you probably know it", skip, now, true));
    if (wrong.children.length) root.append(written("h2", "What was wrong or skipped"), wrong);
    root.append(button("Answer anew", () => { mine = []; keep(KEY, mine); ask(); }));
    head.focus();
  }

  ask();
})();
