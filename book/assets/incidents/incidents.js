// Incidents: shows one, sells probes for GPU hours against a written hypothesis, asks for the cause,
// and shows points and an expert's search next to the reader's. Follows the rules of dlsys_incidents/searches.py.
"use strict";
(() => {
  const root = document.getElementById("incidents");
  const data = window.dlsysIncidents;
  if (!root || !data) return;
  const KEY = "dlsys-incidents";
  const { make, written, button, group, radio, said: status, chosen, kept, keep } = window.dlsysForm(root);
  const unpacked = (text) => JSON.parse(atob(text));

  // ---- what is kept

  let mine = []; // events of this visit: a browser may keep nothing

  const whole = (one) => one && ["id", "digest", "what", "name", "words", "key"].every((part) => typeof one[part] === "string") &&
    ["probe", "words", "cause", "again"].includes(one.what);

  const stored = () => kept(KEY, whole);

  function events() {
    const old = stored();
    const keys = new Set(old.map((one) => one.key));
    return [...old, ...mine.filter((one) => !keys.has(one.key))];
  }

  function add(incident, what, name = "", words = "") {
    const key = [...crypto.getRandomValues(new Uint32Array(2))].map((part) => part.toString(16)).join("");
    const event = { id: incident.id, digest: incident.digest, what, name, words, key, time: new Date().toISOString() };
    mine.push(event);
    return keep(KEY, [...stored(), event]);
  }

  // ---- a search, as its events tell

  function searchOf(incident) {
    let search = { looks: [], named: "", words: "" };
    const hours = Object.fromEntries(incident.probes.map((probe) => [probe.id, probe.hours]));
    const causes = unpacked(incident.packed).causes.map((cause) => cause.id);
    const spent = () => search.looks.reduce((sum, look) => sum + hours[look.probe], 0);
    for (const one of events()) {
      if (one.id !== incident.id || one.digest !== incident.digest) continue;
      if (one.what === "again") search = { looks: [], named: "", words: "" };
      else if (search.named) continue;
      else if (one.what === "cause") {
        if (causes.includes(one.name) && search.words) search.named = one.name;
      } else if (search.words) continue;
      else if (one.what === "words") search.words = one.words;
      else if (Object.hasOwn(hours, one.name) && !made(search, one.name) && hours[one.name] <= data.budget - spent()) {
        search.looks.push({ probe: one.name, hypothesis: one.words });
      }
    }
    search.spent = spent();
    search.left = data.budget - search.spent;
    search.day = data.days[Math.min(data.days.length - 1, Math.floor(search.spent * data.days.length / data.budget))];
    return search;
  }

  const made = (search, name) => search.looks.some((look) => look.probe === name);
  const begun = (search) => search.looks.length > 0 || search.words !== "";
  const probeOf = (incident, name) => incident.probes.find((probe) => probe.id === name);
  const gpuHours = (count) => `${count} GPU hour${count === 1 ? "" : "s"}`;
  const dollars = (hours) => `${gpuHours(hours)}, ${Math.round(hours * data.dollars)} dollars`;
  const rulesOut = (probe, cause) => cause.probe === probe || cause.also.includes(probe);
  const shows = (probe, cause) => cause.shown_by.includes(probe);

  function scoreOf(incident, search) { // as searches.Search does
    const { causes, right, expert } = unpacked(incident.packed);
    const others = causes.filter((cause) => cause.id !== right);
    const ran = search.looks.map((look) => look.probe);
    const showing = ran.filter((probe) => causes.some((cause) => shows(probe, cause)));
    const shown = showing.length > 0;
    const excluded = others.filter((cause) => ran.some((probe) => rulesOut(probe, cause))).length;
    const evidence = shown / 2 + excluded / others.length / 2;
    const expertHours = expert.reduce((sum, step) => sum + probeOf(incident, step.probe).hours, 0);
    const confirming = showing.slice(1).filter((probe) => !expert.some((step) => step.probe === probe)).reduce((sum, probe) => sum + probeOf(incident, probe).hours, 0);
    const over = ((search.spent - confirming) / expertHours - 1) / (data.dear - 1);
    const price = 1 - Math.min(Math.max(over, 0), 1) / 2;
    const isRight = search.named === right;
    const points = isRight ? Math.round((data.guessed + (data.points - data.guessed) * evidence) * price) : 0;
    return { isRight, shown, excluded, others: others.length, price, points, found: isRight && evidence >= data.enough };
  }

  // ---- figures

  const number = (value) => String(Number(value.toPrecision(4)));

  function drawing(name, attributes = {}) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }

  function lettered(x, y, text, anchor) {
    const found = drawing("text", { x, y, "text-anchor": anchor });
    found.textContent = text;
    return found;
  }

  function figure(curve) {
    const [W, H, left, right, top, bottom] = [460, 230, 66, 14, 14, 44];
    const lines = Object.entries(curve.lines);
    const values = lines.flatMap(([, line]) => line);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const [start, end] = [curve.x[0], curve.x.at(-1)];
    const px = (x) => left + (x - start) / (end - start || 1) * (W - left - right);
    const py = (y) => H - bottom - (y - low) / (high - low || 1) * (H - top - bottom);
    const svg = drawing("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${curve.title}. ${lines.map(([name, line]) => `${name}: from ${number(line[0])} to ${number(line.at(-1))}, lowest ${number(Math.min(...line))}, highest ${number(Math.max(...line))}`).join(". ")}. The numbers are below.` });
    svg.append(drawing("polyline", { class: "axis", points: `${left},${top} ${left},${H - bottom} ${W - right},${H - bottom}` }));
    for (const y of [low, high]) svg.append(lettered(left - 6, py(y) + 4, number(y), "end"));
    svg.append(lettered(left, H - bottom + 18, number(start), "middle"), lettered(W - right, H - bottom + 18, number(end), "end"),
      lettered((left + W - right) / 2, H - 6, curve.axis, "middle"));
    lines.forEach(([, line], n) => svg.append(drawing("polyline", { class: `line-${n % 4}`, points: line.map((y, k) => `${px(curve.x[k]).toFixed(1)},${py(y).toFixed(1)}`).join(" ") })));
    const found = make("figure");
    found.append(make("figcaption", curve.title), svg);
    if (lines.length > 1) found.append(legend(lines.map(([name]) => name)));
    found.append(numbers(curve, lines));
    return found;
  }

  function legend(names) {
    const found = make("ul", "", { class: "legend" });
    names.forEach((name, n) => {
      const item = make("li");
      const svg = drawing("svg", { viewBox: "0 0 40 10", "aria-hidden": "true" });
      svg.append(drawing("polyline", { class: `line-${n % 4}`, points: "0,5 40,5" }));
      item.append(svg, name);
      found.append(item);
    });
    return found;
  }

  function numbers(curve, lines) {
    const found = make("details");
    found.append(make("summary", "The numbers"));
    const table = make("table");
    const rows = [[curve.axis, curve.x], ...lines];
    for (const [name, values] of rows) {
      const step = Math.max(1, Math.floor((values.length - 1) / 11));
      const row = make("tr");
      row.append(make("th", name, { scope: "row" }), ...values.filter((_, n) => n % step === 0).map((value) => make("td", number(value))));
      table.append(row);
    }
    const wide = make("div", "", { class: "pst-scrollable-table-container", tabindex: "0" });
    wide.append(table);
    found.append(wide);
    return found;
  }

  function answer(probe) {
    const shown = unpacked(probe.packed);
    const found = make("div");
    found.append(shown.shows.includes("\n") ? make("pre", shown.shows, { class: "log", tabindex: "0" }) : written("p", shown.shows),
      ...shown.curves.map(figure));
    return found;
  }

  // ---- one incident

  function show(incident, focus = true) {
    const search = searchOf(incident);
    const parts = [make("h2", `${incident.number}. ${incident.title}`, { tabindex: "-1" }),
      ...incident.situation.map((text) => make("p", text)), ...incident.curves.map(figure)];
    const chat = make("ul", "", { class: "chat" });
    for (const [who, says] of incident.chat) {
      const item = make("li");
      item.append(make("strong", `${who}: `), says);
      chat.append(item);
    }
    parts.push(make("h3", "What the chat says"), chat, make("h3", "The bill"), make("p", incident.bill));
    const log = make("div");
    const next = make("div");
    for (const look of search.looks) log.append(looked(incident, look));
    body.replaceChildren(...parts, log, next);
    if (search.named) debrief(incident, next);
    else if (search.words) list(incident, next);
    else ask(incident, log, next);
    if (focus) body.firstChild.focus();
    overview();
  }

  function looked(incident, look) {
    const probe = probeOf(incident, look.probe);
    return group(`${probe.does} (${gpuHours(probe.hours)})`, make("p", `You believed: ${look.hypothesis}`), answer(probe));
  }

  function sentence(text, what, said) {
    const plain = text.trim().split(/\s+/).join(" ");
    if ((plain.match(/\p{L}/gu) || []).length < data.letters) {
      said.textContent = `${what}: got ${plain ? `"${plain.slice(0, 40)}"` : "nothing"}, expected a sentence of your own. It is not judged; you will read it again at the end.`;
      return null;
    }
    if (plain.length > data.most) {
      said.textContent = `${what}: got ${plain.length} characters, expected one sentence of at most ${data.most}.`;
      return null;
    }
    return plain;
  }

  function field(name) {
    const box = make("textarea", "", { "aria-label": name, maxlength: String(2 * data.most) });
    return box;
  }

  function ask(incident, log, place) {
    const search = searchOf(incident);
    const said = status();
    const options = incident.probes.map((probe) => {
      const option = radio("probe", probe.id, `${probe.does} ${gpuHours(probe.hours)}.`);
      const why = made(search, probe.id) ? " You have run this probe." : probe.hours > search.left ? " More than you have left." : "";
      if (why) {
        option.querySelector("input").disabled = true;
        option.querySelector("span").append(why);
      }
      return option;
    });
    const hypothesis = field("What you believe, and what you expect to see");
    const left = make("p", `${search.day}, ${search.left} of ${data.budget} GPU hours left.`, { class: "left" });
    const pay = button("Pay, and see", () => {
      const name = chosen("probe");
      if (name === undefined) {
        said.textContent = "Probe: got nothing, expected one of them.";
        return;
      }
      const words = sentence(hypothesis.value, "Hypothesis", said);
      if (words === null) return;
      const isKept = add(incident, "probe", name, words);
      const after = searchOf(incident);
      if (!made(after, name) || after.words) { // another tab was faster
        show(incident);
        return;
      }
      const fresh = looked(incident, after.looks.find((look) => look.probe === name));
      fresh.tabIndex = -1;
      if (!isKept) fresh.append(make("p", "Your browser keeps nothing for this page, so your search ends with this visit."));
      log.append(fresh);
      ask(incident, log, place);
      fresh.focus();
      overview();
    });
    const affordable = incident.probes.some((probe) => !made(search, probe.id) && probe.hours <= search.left);
    const spend = affordable ? [group("The next probe", ...options, make("p", "Before you see its answer: what do you believe, and what do you expect to see?"), hypothesis, pay)]
      : [make("p", "The budget does not cover any probe that you have not run. Name the cause.")];
    place.replaceChildren(left, ...spend, said, button("Name the cause; no more probes after that", () => name(incident, place)));
  }

  function name(incident, place) {
    const said = status();
    const own = field("The cause in your own words");
    const next = button("That is the cause; show me the list", () => {
      const words = sentence(own.value, "Cause", said);
      if (words === null) return;
      add(incident, "words", "", words);
      show(incident, false);
      body.querySelector('input[name="cause"]')?.focus();
    });
    place.replaceChildren(group("The cause in your own words. After this you choose from a list, and you cannot run any more probes.",
      own, next, button("Back to the probes", () => show(incident))), said);
    own.focus();
  }

  function list(incident, place) {
    const said = status();
    const done = button("That is what I mean", () => {
      if (chosen("cause") === undefined) {
        said.textContent = "Cause: got nothing, expected one of them.";
        return;
      }
      add(incident, "cause", chosen("cause"));
      show(incident, false);
      document.getElementById("incident-verdict").focus();
    });
    place.replaceChildren(make("p", `The cause in your words: ${searchOf(incident).words}`),
      group("Which of these comes closest to what you mean?", ...unpacked(incident.packed).causes.map((cause) => radio("cause", cause.id, cause.says))), done, said);
  }

  // ---- the debrief

  function debrief(incident, place) {
    const search = searchOf(incident);
    const end = unpacked(incident.packed);
    const cause = (id) => end.causes.find((one) => one.id === id);
    const score = scoreOf(incident, search);
    const verdict = score.found ? "✓ You found it" : score.isRight ? "✓ That is the cause, but your probes hardly show it" : "✗ That was not it";
    const dear = score.price === 1 ? "" : ` You spent more than the expert, so ${Math.round(100 * score.price)} % of the points remain.`;
    const why = score.isRight ? ` ${score.shown ? "One" : "None"} of your probes shows the cause itself, and your probes rule out ${score.excluded} of the ${score.others} others.${dear}` : "";
    const parts = [make("h2", verdict, { id: "incident-verdict", tabindex: "-1" }),
      make("p", `The cause: ${cause(end.right).says}`), make("p", `In your words: ${search.words}`),
      make("p", `${score.points} of ${data.points} points.${why}`)];
    if (!score.isRight) {
      const named = cause(search.named);
      const against = made(search, named.probe) ? "Your probe speaks against it" : "A probe would have spoken against it";
      parts.push(make("p", `You chose: ${named.says} ${against}: ${probeOf(incident, named.probe).does} ${named.against}`));
    }
    parts.push(written("p", end.why), written("p", `Repair: ${end.repair}`));
    const both = make("div", "", { class: "searches" });
    both.append(yourSearch(incident, search, end), expertSearch(incident, end));
    const sources = make("ul");
    for (const source of end.sources) {
      const item = make("li");
      item.append(make("a", source.title, { href: source.address }), `. ${source.says}`);
      sources.append(item);
    }
    parts.push(both, make("h3", "Read for this incident"), sources, button("Search it again from the beginning", () => {
      add(incident, "again");
      show(incident);
    }));
    place.replaceChildren(...parts);
  }

  function yourSearch(incident, search, end) {
    const list = make("ol");
    for (const look of search.looks) {
      const probe = probeOf(incident, look.probe);
      const item = make("li", `${probe.does} ${gpuHours(probe.hours)}.`);
      item.append(make("div", `You believed: ${look.hypothesis}`));
      for (const cause of end.causes) {
        if (shows(look.probe, cause)) item.append(make("div", `It shows the cause: ${cause.says}`));
        if (rulesOut(look.probe, cause)) item.append(make("div", `It rules out: ${cause.says}`));
      }
      list.append(item);
    }
    const found = make("div");
    found.append(make("h3", `Your search: ${dollars(search.spent)}`), search.looks.length ? list : make("p", "You did not run any probe."));
    return found;
  }

  function expertSearch(incident, end) {
    const list = make("ol");
    let hours = 0;
    for (const step of end.expert) {
      const probe = probeOf(incident, step.probe);
      hours += probe.hours;
      const item = make("li", `${probe.does} ${gpuHours(probe.hours)}.`);
      item.append(make("div", `The expert's hypothesis: ${step.believes}`), make("div", `What is left: ${step.left}`));
      list.append(item);
    }
    const found = make("div");
    found.append(make("h3", `An expert's search: ${dollars(hours)}`), list);
    return found;
  }

  // ---- the list of incidents

  function overview() {
    const rows = data.incidents.map((incident) => {
      const search = searchOf(incident);
      const score = scoreOf(incident, search);
      const far = search.named ? `${score.found ? "found" : score.isRight ? "guessed" : "not found"}, ${score.points} points` : begun(search) ? "begun" : "";
      return make("option", `${incident.number}. ${incident.title}${far ? ` (${far})` : ""}`, { value: incident.id });
    });
    const now = select.value;
    select.replaceChildren(...rows);
    if (now) select.value = now;
  }

  const select = make("select", "", { "aria-label": "Incident" });
  const body = make("div");
  const top = make("div", "", { class: "fields" });
  top.append(select, button("Open", () => show(data.incidents.find((one) => one.id === select.value))));
  root.replaceChildren(top, body);
  overview();
  const open = data.incidents.find((one) => begun(searchOf(one)) && !searchOf(one).named) || data.incidents.find((one) => !searchOf(one).named) || data.incidents[0];
  select.value = open.id;
  show(open, false);
  window.addEventListener("storage", (event) => { // another tab went on: never while somebody writes
    if (event.key === KEY && !root.querySelector("textarea")?.value) show(data.incidents.find((one) => one.id === select.value), false);
  });
})();
