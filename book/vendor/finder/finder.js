// Finds rows of the symptom finder by words. Used on the finder's page and on the search page;
// without it the page shows all its rows.
"use strict";
(() => {
  const IDLE = new Set(("a am an and are as at be but by can do does for from get has have how i in is "
    + "it its me my of on or so than that the there this to vs was what when which while why with "
    + "you your pytorch torch").split(" "));

  const FITS = 0.5; // of what all asked words could score: below it no row is about this

  // Words in lower case; numbers keep their point.
  const words = (text) => (text.toLowerCase().match(/\d+(?:\.\d+)?|[a-z][a-z\d]*/g) || [])
    .filter((word) => !IDLE.has(word));

  // A word without its ending, with one spelling for -ise and -ize.
  const stem = (word) => word.replace(/is(?=ation|e|ing)/, "iz").replace(/(ing|ed|es|s)$/, (end) =>
    word.length - end.length >= 3 ? "" : end);

  // How much of an asked word another one is: all of it, or one begins with the other.
  function alike(asked, word) {
    if (asked === word) return 1;
    const goesOn = asked.length >= 3 && word.startsWith(asked);
    const begins = word.length >= 4 && asked.startsWith(word) && asked.length - word.length <= 3;
    return goesOn || begins ? 0.8 : 0;
  }

  const best = (asked, list) => Math.max(0, ...list.map((word) => alike(asked, word)));

  // Whether three words in a row stand in both, as where a whole message is asked for.
  const quotes = (asked, list) => asked.slice(2).some((_, i) =>
    ` ${list.join(" ")} `.includes(` ${asked.slice(i, i + 3).join(" ")} `));

  // How well each row answers, best first: rare words count more, what one sees most.
  // Returns the rows, whether the first one fits, and the asked words that no row has.
  function rank(rows, query) {
    const said = words(query).map(stem), asked = [...new Set(said)];
    const read = rows.map((row) => ({ row, see: words(row.see).map(stem),
      rest: words(row.rest).map(stem) }));
    const weights = asked.map((a) => {
      const n = read.filter((r) => best(a, r.see)).length;
      return Math.log(1 + rows.length / (1 + n));
    });
    const score = (r) => asked.reduce((sum, a, i) => sum + weights[i]
      * Math.max(3 * best(a, r.see), best(a, r.rest)), 0);
    const scored = read.map((r) => {
      const quoted = quotes(said, r.rest);
      return { row: r.row, quoted, score: score(r) * (quoted ? 2 : 1) };
    }).filter((r) => r.score > 0);
    scored.sort((a, b) => b.score - a.score);
    const most = scored.length ? scored[0].score : 0;
    const possible = 3 * weights.reduce((sum, weight) => sum + weight, 0);
    const missing = words(query).filter((w) => !read.some((r) => best(stem(w), r.rest)));
    return { hits: scored.filter((r) => r.score >= 0.4 * most).map((r) => r.row),
      fits: most >= FITS * possible || Boolean(scored[0]?.quoted),
      missing: [...new Set(missing)] };
  }

  // What was found, in a sentence or two.
  function told({ hits, fits, missing }, count) {
    const lacks = missing.length ? ` No row has: ${missing.join(", ")}.` : "";
    if (!hits.length)
      return `Nothing fits.${lacks} All signs are shown: try a word of the message, or a number.`;
    const found = `${hits.length} of ${count} signs, best first.${lacks}`;
    return fits ? found : `Nothing fits well; these share a word or two. ${found}`;
  }

  // Whoever comes back to the page finds what was asked.
  function remember(query) {
    const address = new URL(location.href);
    if (query) address.searchParams.set("q", query);
    else address.searchParams.delete("q");
    history.replaceState(null, "", address);
  }

  function onFinder(box) {
    const groups = [...document.querySelectorAll("article div.symptoms")];
    const rows = groups.flatMap((g) => [...g.querySelectorAll("tbody tr")]).map((tr) => ({
      tr, see: tr.cells[0].textContent, rest: tr.textContent }));
    const found = document.querySelector(".finder-found");
    const said = document.querySelector(".finder-said");
    const table = groups[0].querySelector("table").cloneNode(true);
    found.append(table);
    found.classList.add("symptoms", "rows");
    box.closest("p").hidden = false;
    box.addEventListener("input", () => {
      const asking = words(box.value).length > 0;
      const answer = rank(rows, box.value), hits = answer.hits;
      found.hidden = hits.length === 0;
      groups.forEach((g) => { g.parentElement.hidden = asking && hits.length > 0; });
      table.tBodies[0].replaceChildren(...hits.map((h) => h.tr.cloneNode(true)));
      said.textContent = asking ? told(answer, rows.length) : "";
      remember(box.value);
    });
    const query = new URLSearchParams(location.search).get("q");
    if (query) { box.value = query; box.dispatchEvent(new Event("input")); }
  }

  // The three best rows above the results of the theme's search, where they fit.
  function onSearch(rows) {
    const { hits, fits } = rank(rows, new URLSearchParams(location.search).get("q") || "");
    if (!hits.length || !fits) return;
    const list = document.createElement("ul");
    list.className = "finder-hits";
    hits.slice(0, 3).forEach((hit) => {
      const item = document.createElement("li"), link = document.createElement("a");
      link.href = hit.page;
      link.textContent = hit.title;
      item.append(link, document.createElement("br"), hit.see);
      list.append(item);
    });
    const title = document.createElement("h2");
    title.textContent = "By symptom";
    document.getElementById("search-results").before(title, list);
  }

  const box = document.getElementById("finder");
  if (box) onFinder(box);
  else if (window.FINDER && document.getElementById("search-results")) onSearch(window.FINDER);
})();
