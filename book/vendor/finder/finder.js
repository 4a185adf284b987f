// Finds rows of the symptom finder by words. Used on the finder's page and on the search page;
// without it the page shows all its rows.
"use strict";
(() => {
  const IDLE = new Set(("a am an and are as at be but by can do does for from get how i in is it its "
    + "me my of on or so than that the there this to was what when which while why with you your "
    + "pytorch torch").split(" "));

  // Words in lower case; numbers keep their point.
  function words(text) {
    const found = text.toLowerCase().match(/\d+(?:\.\d+)?|[a-z]+/g) || [];
    return found.filter((w) => !IDLE.has(w)).map((w) => w.replace(/(ing|ed|es|s)$/, (end) =>
      w.length - end.length >= 3 ? "" : end));
  }

  const same = (asked, word) => word === asked
    || (asked.length >= 3 && word.startsWith(asked)) || (word.length >= 4 && asked.startsWith(word));

  // How well each row answers, best first: rare words count more, what one sees most.
  function rank(rows, query) {
    const asked = [...new Set(words(query))];
    const read = rows.map((row) => ({ row, see: words(row.see), rest: words(row.rest) }));
    const weights = asked.map((a) => {
      const n = read.filter((r) => r.see.some((w) => same(a, w))).length;
      return Math.log(1 + rows.length / (1 + n));
    });
    const score = (r) => asked.reduce((sum, a, i) => sum + weights[i]
      * (r.see.some((w) => same(a, w)) ? 3 : r.rest.some((w) => same(a, w)) ? 1 : 0), 0);
    const scored = read.map((r) => ({ row: r.row, score: score(r) })).filter((r) => r.score > 0);
    scored.sort((a, b) => b.score - a.score);
    return scored.filter((r) => r.score >= 0.4 * scored[0].score).map((r) => r.row);
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
      const hits = asking ? rank(rows, box.value) : [];
      found.hidden = hits.length === 0;
      groups.forEach((g) => { g.parentElement.hidden = asking && hits.length > 0; });
      table.tBodies[0].replaceChildren(...hits.map((h) => h.tr.cloneNode(true)));
      said.textContent = !asking ? "" : hits.length
        ? `${hits.length} of ${rows.length} signs, best first`
        : "Nothing fits. All signs are shown: try a word of the message, or a number.";
    });
    const query = new URLSearchParams(location.search).get("q");
    if (query) { box.value = query; box.dispatchEvent(new Event("input")); }
  }

  // The three best rows above the results of the theme's search.
  function onSearch(rows) {
    const query = new URLSearchParams(location.search).get("q");
    const hits = query ? rank(rows, query).slice(0, 3) : [];
    if (!hits.length) return;
    const list = document.createElement("ul");
    list.className = "finder-hits";
    hits.forEach((hit) => {
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
