// A lesson part by part: one section at a time, a line of dots, and the way to the next one, along
// the core path or through all. Without this script, on paper and by choice it is one long page.
"use strict";
(() => {
  const root = document.documentElement;
  const nav = document.querySelector("nav.flow");
  const lesson = document.querySelector(".bd-article > section");
  if (!nav || !lesson) return;

  // A browser may forbid a page to keep anything; a choice then counts until the page is left.
  const kept = {};
  const recall = (key) => {
    try { return localStorage.getItem(key); } catch { return kept[key]; }
  };
  const keep = (key, value) => {
    kept[key] = value;
    try { localStorage.setItem(key, value); } catch { /* as above */ }
  };

  // ---- the parts: everything before the first section, then each section
  const sections = [...lesson.children].filter((node) => node.tagName === "SECTION");
  const opening = [...lesson.children].filter((node) => node.tagName !== "SECTION"
    && !node.matches("h1, nav, .everything, script, link"));
  const parts = [{ nodes: opening, id: lesson.id, name: "Begin" },
    ...sections.map((section) => ({ nodes: [section], id: section.id, name: title(section) }))];
  parts.forEach((part, i) => {
    part.trap = /^trap-\d/.test(part.id);
    part.core = part.trap && sections[i - 1].querySelector("h2 .core") !== null;
  });
  let current = 0;

  function title(section) {
    const heading = section.querySelector("h2").cloneNode(true);
    heading.querySelectorAll(".headerlink, .core").forEach((node) => node.remove());
    return heading.textContent.trim();
  }

  const oneByOne = () => root.classList.contains("one-part");
  const coreOnly = () => recall("dlsys-core-path") === "yes";
  const onWay = (part) => !part.trap || part.core || !coreOnly();

  // The part that an address leads to; the first one where it leads to none.
  function asked() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    return Math.max(0, parts.findIndex(({ nodes }) => nodes.some((node) => node.contains(target))));
  }

  // ---- what is drawn
  function link(part, text, classes) {
    const a = document.createElement("a");
    a.href = `#${part.id}`;
    a.className = classes;
    a.append(text);
    return a;
  }

  function dot(part, i) {
    const item = document.createElement("li");
    const a = link(part, "", part.trap ? (part.core ? "trap core-trap" : "trap") : "");
    a.title = part.core ? `${part.name} (core)` : part.name;
    a.setAttribute("aria-label", a.title);
    if (i === current) a.setAttribute("aria-current", "true");
    item.append(a);
    return item;
  }

  const ends = document.createElement("p");
  ends.className = "flow-ends";
  lesson.append(ends);

  function step(from, way) {
    for (let i = from + way; i >= 0 && i < parts.length; i += way) if (onWay(parts[i])) return parts[i];
    return null;
  }

  function draw() {
    nav.querySelector("ol").replaceChildren(...parts.map(dot).filter((_, i) =>
      onWay(parts[i]) || i === current));
    // Hidden parts are found by the browser's own search, which opens them.
    parts.forEach(({ nodes }, i) => nodes.forEach((node) => {
      if (oneByOne() && i !== current) node.hidden = "until-found";
      else node.removeAttribute("hidden");
    }));
    const before = step(current, -1), after = step(current, 1);
    ends.replaceChildren(...[before && link(before, `\u2190 ${before.name}`, "flow-back"),
      after && link(after, `${after.name} \u2192`, "button flow-on")].filter(Boolean));
    ends.hidden = !oneByOne();
    // The next trap of the core path is named once: not where the button leads there.
    lesson.querySelectorAll(".step-next").forEach((way) => {
      way.hidden = oneByOne() && after !== null
        && way.querySelector("a")?.hash === `#${after.id}`;
    });
    nav.querySelector("[data-parts]").textContent =
      oneByOne() ? "The whole lesson on one page" : "One part at a time";
    const choice = nav.querySelector("[data-core]");
    choice.hidden = !parts.some((part) => part.core);
    choice.textContent = coreOnly() ? "All traps" : "Core path only";
    root.classList.toggle("flow-inside", oneByOne() && current > 0);
    root.classList.toggle("core-only", coreOnly());
    root.classList.add("flow-ready");
  }

  function show(i) {
    current = i;
    draw();
  }

  // ---- what is asked
  nav.querySelector("[data-parts]").addEventListener("click", () => {
    root.classList.toggle("one-part");
    keep("dlsys-parts", oneByOne() ? "one" : "whole");
    draw();
  });
  nav.querySelector("[data-core]").addEventListener("click", () => {
    keep("dlsys-core-path", coreOnly() ? "no" : "yes");
    draw();
  });
  addEventListener("hashchange", () => {
    show(asked());
    if (oneByOne()) begin();
  });
  lesson.addEventListener("beforematch", ({ target }) =>
    show(parts.findIndex(({ nodes }) => nodes.some((node) => node.contains(target)))));
  // A part begins with the line of dots; a place within a part is the position on the page.
  function begin() {
    const id = decodeURIComponent(location.hash.slice(1));
    if (id === parts[current].id) nav.scrollIntoView();
    else document.getElementById(id)?.scrollIntoView();
  }

  let whole = false;
  addEventListener("beforeprint", () => {
    whole = !oneByOne();
    root.classList.remove("one-part");
    draw();
  }, { capture: true });
  addEventListener("afterprint", () => {
    root.classList.toggle("one-part", !whole);
    draw();
  });
  show(asked());
  // The browser itself scrolls to the address once all is loaded.
  addEventListener("load", () => { if (oneByOne() && current > 0) begin(); });
})();
