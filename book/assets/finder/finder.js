// Finds rows of the symptom finder by words. Used on the finder's page and on the search page;
// without it the page shows all its rows. rows.js brings window.FINDER: the rows' words, the rules
// by which they are read, what words say of causes, and what the course teaches and where.
// src/dlsys/find.py and, for the last, src/dlsys/units.py count alike, function by function.
"use strict";
(() => {
  const { rules, said: told, rows, texts, taught } = window.FINDER;
  const WEIGHTS = rules.weights;
  const DIGITS = 9; // of a score, so that two languages order equal rows alike
  const MOST = 3; // causes that are shown, and places that teach something
  const NAMED = 10, LETTERS = 40; // words that no row has: how many are named, how much of each
  const ASKED = 200; // characters of what was asked that an address holds
  const LEAST = 1e-9; // of a share, whose logarithm is asked for
  const TENTHS = 10; // the weights of words are whole tenths
  const IDLE = new Set(rules.idle);
  const SAME = new Map(Object.entries(rules.same));
  const WORDS = new Map(Object.entries(told.words));
  const KIN = kin();
  const WORD = /[0-9]+(?:\.[0-9]+)?(?: ?%)?|[a-z][a-z0-9]*/g;
  // What a text is cleared of: addresses, tags of a page (but not <pad> or <unk>), and entities.
  const MARKUP = new RegExp(texts.markup, "g");
  const sum = (list) => list.reduce((a, b) => a + b, 0);

  // A word without its ending, with one spelling for -ise and -ize.
  function stem(word) {
    word = word.replace(/is(?=ation|e|ing)/g, "iz");
    const end = rules.endings.find((e) => word.endsWith(e) && word.length - e.length >= 3);
    return end ? word.slice(0, -end.length) : word;
  }

  // A number without needless zeros, and what it is a sign of: "2.302585" is a guess's loss.
  function number(said) {
    const value = parseFloat(said), percent = said.endsWith("%") ? "%" : "";
    const level = said.includes(".") && !percent ? rules.levels.filter(
      ([, at]) => Math.abs(value - at) <= rules.near).map(([name]) => name) : [];
    return [String(Number(value.toFixed(4))) + percent, ...level];
  }

  // What a text says, one token for all spellings, each with the words that were said.
  function tokens(text) {
    const said = text.toLowerCase().replace(MARKUP, " ").match(WORD) || [], stems = said.map(stem), list = [];
    for (let at = 0, length; at < said.length; at += length) {
      for (length = Math.min(rules.longest, said.length - at); length > 0; length -= 1) {
        const token = SAME.get(stems.slice(at, at + length).join(" "));
        if (token) { list.push([token, said.slice(at, at + length).join(" ")]); break; }
      }
      if (length > 0) continue;
      length = 1;
      if (/^[0-9]/.test(said[at])) list.push(...number(said[at]).map((token) => [token, said[at]]));
      else if (!IDLE.has(stems[at])) list.push([stems[at], said[at]]);
    }
    return list;
  }

  // The words that are read of a long text, as where a whole log is pasted: its two ends.
  const excerpt = (words) => words.length <= 2 * rules.ends ? words
    : [...words.slice(0, rules.ends), ...words.slice(-rules.ends)];

  const plain = (text) => tokens(text).map(([token]) => token);

  // The groups of words that are close to each other in this field, by each of their tokens.
  function kin() {
    const groups = new Map();
    rules.like.map((group) => group.split(" ")).forEach((group) => group.forEach((token) =>
      groups.set(token, [...(groups.get(token) || []), `~${group[0]}`])));
    return groups;
  }

  // Each token once, then their groups: "dies" speaks for a cause as "killed" and "abort" do.
  const widened = (said) => [...new Set([...said, ...said.flatMap((token) => KIN.get(token) || [])])];

  // How much of an asked token another one is: all of it, or one begins with the other.
  function alike(asked, word) {
    if (asked === word) return 1;
    const goesOn = asked.length >= 4 && word.startsWith(asked);
    const begins = word.length >= 4 && asked.startsWith(word) && asked.length - word.length <= 3;
    return goesOn || begins ? WEIGHTS.start : 0;
  }

  const saysMuch = (share, all = rows.length) => Math.log(1 + all / (1 + share));

  // Rows read once: their phrases, the tokens of each place, and how much each token says.
  function index() {
    const read = rows.map((row) => {
      const phrases = [row.see, ...row.also].map(plain);
      return { row, phrases, places: [[WEIGHTS.see, phrases[0]], [WEIGHTS.also,
        phrases.slice(1).flat()], [WEIGHTS.name, plain(row.name)], [WEIGHTS.rest, plain(row.rest)]] };
    });
    const shares = new Map();
    read.forEach((r) => new Set(r.places.slice(0, 3).flatMap(([, words]) => words)).forEach(
      (token) => shares.set(token, (shares.get(token) || 0) + 1)));
    read.forEach((r) => {
      r.lengths = r.phrases.map((phrase) => Math.hypot(
        ...[...new Set(phrase)].map((token) => saysMuch(shares.get(token)))));
    });
    return { read, all: [...new Set(read.flatMap((r) => r.places.flatMap(([, words]) => words)))] };
  }

  // How much an asked token says; near: the tokens of all rows that are like it.
  const weigh = (known, near) => saysMuch(known.read.filter((r) => r.places.slice(0, 3).some(
    ([, words]) => words.some((word) => near.has(word)))).length);

  // How much of a token's weight a row has, at the place where it counts most.
  const found = (near, r) => Math.max(0, ...r.places.map(([weight, words]) => weight
    * Math.max(0, ...words.map((word) => near.get(word) || 0))));

  // How much the closest phrase and the asked words are the same: 1 where none is left over.
  function closest(asked, nears, r) {
    const length = Math.hypot(...asked.values());
    return Math.max(0, ...r.phrases.map((phrase, i) => {
      const shared = sum([...asked].map(([token, weight]) => weight ** 2
        * Math.max(0, ...phrase.map((word) => nears.get(token).get(word) || 0))));
      return shared ? shared / (length * r.lengths[i]) : 0;
    }));
  }

  const pairs = (list) => list.slice(1).map((word, i) => [list[i], word]);

  // The asked tokens that have the same neighbour in a phrase of the row.
  function together(said, r) {
    const known = new Set(r.phrases.flatMap(pairs).map((pair) => pair.join(" ")));
    return pairs(said).filter((pair) => known.has(pair.join(" "))).flat();
  }

  // Whether both have the same four tokens in a row, as when somebody pastes a whole message.
  const quoted = (said, r) => said.slice(3).some((_, i) => r.phrases.some((phrase) =>
    ` ${phrase.join(" ")} `.includes(` ${said.slice(i, i + 4).join(" ")} `)));

  // How likely each cause is to be meant by these tokens, and that nothing fits: a softmax of
  // weighted words; the tokens and their groups form a vector of unit length.
  function likely(said) {
    const words = widened(said).filter((token) => WORDS.has(token)).map((token) => WORDS.get(token));
    if (!words.length) return told.bias.map(() => 0);
    const length = Math.hypot(...words.map(([rare]) => rare));
    const logits = told.bias.map((bias) => bias / TENTHS);
    words.forEach(([rare, ...pairs]) => {
      for (let i = 0, place = 0; i < pairs.length; i += 2) {
        place += pairs[i];
        logits[place] += pairs[i + 1] / TENTHS * rare / length;
      }
    });
    const most = Math.max(...logits), shares = logits.map((one) => Math.exp(one - most));
    const all = sum(shares);
    return shares.map((one) => Number((one / all).toFixed(DIGITS)));
  }

  // The places of the first causes, by how well a row answers that names them and how likely they are.
  const likeliest = (named, causes) => named.map((score, at) => [at, at === told.none ? 0
    : Number((score + WEIGHTS.cause * causes[at]).toFixed(DIGITS))]).filter(([, score]) => score)
    .sort((a, b) => b[1] - a[1]).slice(0, MOST).map(([at]) => at);

  // How likely a row is meant: its likeliest cause, less so the later the row names it.
  const meant = (row, causes) => Math.max(...row.causes.map((at, i) => causes[at] * WEIGHTS.fall ** i));

  // How likely it is that a right cause is among those shown: a logistic curve over how likely the
  // best cause is, compared with none and by itself. A message that a row quotes is also evidence;
  // one word alone is little, words: how many are known.
  function belief(shares, exact, words) {
    const { bias, odds, best: slope, quoted: least, alone } = rules.gate;
    const best = Math.max(...shares.filter((_, at) => at !== told.none));
    if (!best) return exact ? least : 0;
    const log = (share) => Math.log(Math.max(share, LEAST));
    const much = 1 / (1 + Math.exp(-(bias + odds * (log(best) - log(shares[told.none]))
      + slope * log(best))));
    if (words < 2) return Math.min(much, alone);
    return exact ? Math.max(much, least) : much;
  }

  // How sure the finder is, as it says so; "" where none of its causes fits.
  const inWords = (much) => (rules.sure.find(([least]) => much >= least) || [0, ""])[1];

  // The rows that score enough and name a cause that is shown, so that signs and causes agree. A
  // shown cause that none of them names brings the best row that does.
  function agreeing(scored, causes) {
    const least = scored.length ? WEIGHTS.shown * scored[0].score : 0;
    const names = (r, at) => r.row.causes.includes(at);
    const firsts = new Set(causes.map((at) => scored.findIndex((r) => names(r, at))));
    return scored.filter((r, place) => firsts.has(place)
      || (r.score >= least && causes.some((at) => names(r, at)))).map((r) => r.row);
  }

  // How well each row answers: rare words count more, most what one sees, and likely causes.
  // Returns the rows and the causes, best first, how sure they are, the words that no row has, and
  // how many words of a long text were not read.
  function rank(known, query) {
    const every = tokens(query), words = excerpt(every), said = words.map(([token]) => token);
    if (!said.length) return { hits: [], causes: [], sure: "", missing: [], skipped: 0 };
    const nears = new Map(), asked = new Map();
    new Set(said).forEach((token) => {
      const near = new Map(known.all.map((word) => [word, alike(token, word)]).filter(
        ([, much]) => much));
      nears.set(token, near);
      if (near.size || !/^[0-9]/.test(token)) asked.set(token, weigh(known, near));
    });
    const whole = sum([...asked.values()]) || 1, shares = likely(said);
    const named = told.bias.map(() => 0);
    const scored = known.read.map((r) => {
      const cover = sum([...asked].map(([token, weight]) => weight * found(nears.get(token), r)));
      const beside = sum(together(said, r).map((token) => asked.get(token))) / 2;
      const same = cover ? closest(asked, nears, r) : 0, exact = quoted(said, r);
      const score = ((cover + WEIGHTS.pair * beside) / whole + WEIGHTS.phrase * same)
        * (exact ? WEIGHTS.quoted : 1);
      r.row.causes.forEach((at, i) => { named[at] = Math.max(named[at], score * WEIGHTS.fall ** i); });
      return { row: r.row, exact,
        score: Number((score + WEIGHTS.likely * meant(r.row, shares)).toFixed(DIGITS)) };
    }).filter((r) => r.score > 0).sort((a, b) => b.score - a.score);
    const knownWords = [...asked.keys()].filter((token) => nears.get(token).size).length;
    const believed = scored.length ? inWords(belief(shares, scored[0].exact, knownWords)) : "";
    const unknown = sum([...asked].map(([token, weight]) => (nears.get(token).size ? 0 : weight))) / whole;
    const sure = believed === texts.unsure && unknown > rules.gate.unknown ? "" : believed;
    const missing = words.filter(([token]) => asked.has(token) && !nears.get(token).size);
    const causes = likeliest(named, shares);
    return { hits: agreeing(scored, causes), causes, sure, skipped: every.length - words.length,
      missing: [...new Set(missing.map(([, word]) => word))] };
  }

  // Notes on an answer: what was not understood or not read, one sentence each.
  const notes = ({ causes, missing, skipped }) => [
    missing.length ? `The finder does not know: ${missing.slice(0, NAMED).map((word) => word.slice(0, LETTERS))
      .join(", ")}${missing.length > NAMED ? ` and ${missing.length - NAMED} more` : ""}.` : "",
    missing.length && !causes.length ? texts.english : "",
    skipped ? texts.long : ""].filter((note) => note);

  // The tokens of a text about what is taught, with one word for those that mean the same.
  const SAID_ALIKE = taught.same.map(([pattern, word]) => [new RegExp(pattern, "g"), word]);
  const plainTaught = (text) => plain(SAID_ALIKE.reduce(
    (said, [pattern, word]) => said.replace(pattern, word), text.toLowerCase()));

  // Units read once: the tokens of each, those that only the name of its trap has, and how much
  // each token says.
  function indexTaught() {
    const units = taught.units.map(([text, at, open]) => {
      const [place, page, around, trap] = taught.places[at];
      const own = new Set(plainTaught(`${text} . ${trap ? "" : around}`));
      const beside = new Set(plainTaught(around).filter((token) => !own.has(token)));
      return { text, place, page, open, own, beside };
    });
    const counts = new Map();
    units.forEach((unit) => unit.own.forEach(
      (token) => counts.set(token, (counts.get(token) || 0) + 1)));
    return { units, weigh: (token) => saysMuch(counts.get(token) || 0, units.length) };
  }

  // Of what the asked tokens say, how much each unit holds, from 0 to 1; the best unit first.
  function shares({ units, weigh: says }, asked, beside) {
    const whole = sum(asked.map(says)) || 1;
    return units.map((unit) => ({ unit, much: Number((sum(asked.map((token) => says(token)
      * (unit.own.has(token) + beside * unit.beside.has(token)))) / whole).toFixed(DIGITS)) }))
      .sort((a, b) => b.much - a.much || b.unit.open - a.unit.open
        || a.unit.own.size - b.unit.own.size);
  }

  // The first units, one for each place.
  const places = (found) => found.map(({ unit }) => unit).filter((unit, at, all) =>
    all.findIndex(({ place }) => place === unit.place) === at).slice(0, MOST);

  // The units that the asked words name, or else the nearest ones, as perhaps meant. Next to a
  // likely cause a unit has to be nearer, and the trap of one that fits is not named again, only
  // what its More teaches.
  function teaching(known, query, answer) {
    const { longest, named, beside, alone, pair, rest } = taught.limits;
    const asked = [...new Set(excerpt(plainTaught(query)))], pages = new Set(answer.sure
      ? answer.causes.map((at) => told.causes[at][1]) : []);
    const meant = asked.length > longest ? [] : places(shares(known, asked, 0).filter(
      ({ much }) => much >= named));
    if (meant.length) return { heading: taught.named, units: meant };
    const found = shares(known, asked, beside), best = found[0];
    const held = asked.filter((token) => best.unit.own.has(token) || best.unit.beside.has(token));
    const least = held.length > 1 && ["", texts.unsure].includes(answer.sure) ? pair : alone;
    return { heading: taught.perhaps, units: best.much < least ? [] : places(found.filter(
      ({ unit, much }) => much >= rest * best.much && !(unit.open && pages.has(unit.page)))) };
  }

  // What was found, in a sentence or two.
  const answered = (answer) => [answer.sure ? `${answer.sure[0].toUpperCase()}${answer.sure.slice(1)}`
    + `: ${answer.hits.length} of ${rows.length} signs, best first.` : texts.none,
    ...notes(answer)].join(" ");

  // On a return to the page, the last question is there again.
  function remember(query) {
    const address = new URL(location.href);
    if (query) address.searchParams.set("q", query);
    else address.searchParams.delete("q");
    history.replaceState(null, "", address);
  }

  // A cause as it is listed, with the way to its page where a trap shows it.
  function causeItem(at) {
    const [title, page, watched] = told.causes[at], item = document.createElement("li");
    const link = document.createElement(page ? "a" : "span");
    if (page) link.href = page;
    link.textContent = title;
    item.append(link, watched && `; ${watched}`);
    return item;
  }

  // A place that teaches something, with the way there.
  function unitItem(unit) {
    const item = document.createElement("li"), link = document.createElement("a");
    link.href = unit.page;
    link.textContent = unit.place;
    item.append(link, `: ${unit.text}`);
    return item;
  }

  function onFinder(box) {
    const known = index(), units = indexTaught();
    const groups = [...document.querySelectorAll("article div.symptoms")];
    const lines = groups.flatMap((g) => [...g.querySelectorAll("tbody tr")]);
    const found = document.querySelector(".finder-found");
    const said = document.querySelector(".finder-said");
    const pages = document.querySelector(".finder-pages");
    const causes = document.querySelector(".finder-causes");
    const searching = document.querySelector(".finder-search");
    const teaches = document.querySelector(".finder-taught");
    const table = groups[0].querySelector("table").cloneNode(true);
    found.append(table);
    found.classList.add("symptoms", "rows");
    searching.querySelector("p").textContent = texts.search;
    searching.querySelector("ul").replaceChildren(...rules.search.map((step) => {
      const item = document.createElement("li");
      item.textContent = step;
      return item;
    }));
    box.closest("p").hidden = false;
    box.addEventListener("input", () => {
      const asking = box.value.trim().length > 0, read = tokens(box.value).length > 0;
      const answer = rank(known, box.value), hits = answer.sure ? answer.hits : [];
      found.hidden = hits.length === 0;
      causes.hidden = answer.causes.length === 0;
      causes.querySelector("p").textContent = texts.headings[answer.sure];
      causes.querySelector("ol").replaceChildren(...answer.causes.map(causeItem));
      const lesson = teaching(units, box.value, answer);
      teaches.hidden = lesson.units.length === 0;
      teaches.querySelector("p").textContent = lesson.heading;
      teaches.querySelector("ul").replaceChildren(...lesson.units.map(unitItem));
      if (answer.sure) found.after(teaches, searching); // below the signs, and where none fits first
      else causes.before(teaches, searching);
      if (lesson.heading === taught.named) box.closest("p").after(teaches);
      searching.hidden = !read || !["", texts.unsure].includes(answer.sure);
      groups.forEach((g) => { g.parentElement.hidden = hits.length > 0; });
      table.tBodies[0].replaceChildren(...hits.map((h) => lines[rows.indexOf(h)].cloneNode(true)));
      said.textContent = read ? answered(answer) : asking ? texts.english : "";
      pages.hidden = !asking;
      pages.href = `search.html?q=${encodeURIComponent(box.value.slice(0, ASKED))}`;
      remember(box.value.slice(0, ASKED));
    });
    const query = new URLSearchParams(location.search).get("q");
    if (query) { box.value = query; box.dispatchEvent(new Event("input")); }
  }

  // The three best rows above the results of the theme's search, where they fit; else the way to
  // the finder, with the same words.
  function onSearch(results) {
    const query = new URLSearchParams(location.search).get("q") || "";
    if (!query) return;
    const answer = rank(index(), query), fits = answer.sure !== "", { hits } = answer;
    const list = document.createElement("ul"), more = document.createElement("p");
    const finder = document.createElement("a");
    list.className = "finder-hits";
    hits.slice(0, fits ? 3 : 0).forEach((hit) => {
      const item = document.createElement("li"), link = document.createElement("a");
      link.href = hit.page;
      link.textContent = hit.title;
      item.append(link, document.createElement("br"), hit.see);
      list.append(item);
    });
    more.className = "finder-more";
    finder.href = `symptoms.html?q=${encodeURIComponent(query)}`;
    finder.textContent = fits ? "All signs that fit" : "Ask the symptom finder for these words";
    more.append(finder);
    if (fits) {
      const title = document.createElement("h2");
      title.textContent = "By symptom";
      results.before(title, list);
    }
    results.before(more);
  }

  const box = document.getElementById("finder"), results = document.getElementById("search-results");
  if (box) onFinder(box);
  else if (results) onSearch(results);
})();
