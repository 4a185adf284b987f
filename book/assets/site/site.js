// What every page needs in addition to the theme's scripts.
"use strict";
(() => {
  // Print on white, whatever the screen shows.
  const paper = matchMedia("print"), root = document.documentElement.dataset;
  let screen = root.theme;
  paper.addEventListener("change", () => {
    if (paper.matches) [screen, root.theme] = [root.theme, "light"];
    else root.theme = screen;
  });

  // Folded code is left out on paper, or printed open: html.print-code says which.
  let unfolded = [];
  addEventListener("beforeprint", () => {
    const chosen = document.documentElement.classList.contains("print-code");
    unfolded = chosen ? [...document.querySelectorAll("details.hide:not([open])")] : [];
    unfolded.forEach((fold) => (fold.open = true));
  });
  addEventListener("afterprint", () => unfolded.forEach((fold) => (fold.open = false)));

  // Anything wider than the page also scrolls by keyboard.
  const wide = document.querySelectorAll("article :is(.pst-scrollable-table-container, div.math, "
    + "pre, .cell_output, .dlsys-gpu table)");
  const watch = new ResizeObserver((seen) => seen.forEach(({ target }) => {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }));
  wide.forEach((box) => watch.observe(box));

  // On a phone a tap on a figure shows it larger, and a second one whole again.
  const phone = matchMedia("(max-width: 34rem)");
  document.addEventListener("click", (event) => {
    const figure = event.target.closest?.("article .image-reference");
    if (!figure || !phone.matches || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    figure.classList.toggle("wide");
  });

  // The theme blurs the buttons of the bar, and a copy button loses the focus to what it copies from:
  // by keyboard one would begin again at the top of the page.
  addEventListener("DOMContentLoaded", () => document.querySelectorAll(".theme-switch-button, "
    + ".search-button, .primary-toggle, .secondary-toggle").forEach((button) => {
    button.blur = () => {};
  }));
  document.addEventListener("click", (event) => {
    const copy = event.composedPath().find((e) => e.matches?.(".copybtn"));
    copy?.focus({ preventScroll: true });
  });

  // A menu shuts when one looks elsewhere.
  const menus = document.querySelectorAll("details.menu");
  document.addEventListener("click", (event) => menus.forEach((menu) => {
    if (!menu.contains(event.target)) menu.open = false;
  }));
  menus.forEach((menu) => menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.firstElementChild.focus();
  }));

  const up = document.getElementById("pst-back-to-top");
  up?.addEventListener("click", () => scrollTo(0, 0));
  let before = 0;
  addEventListener("scroll", () => {
    up?.style.setProperty("display", before > scrollY && scrollY > innerHeight ? "block" : "none");
    before = scrollY;
  }, { passive: true });

  // No attribute holds a script, so that a strict Content-Security-Policy may forbid them.
  const paperWith = (code) => {
    document.documentElement.classList.toggle("print-code", code);
    print();
  };
  const doing = { "download-pdf-button": () => paperWith(false),
    "print-code-button": () => paperWith(true), "fullscreen-button": () => toggleFullScreen() };
  document.querySelectorAll("[data-does]").forEach((button) =>
    button.addEventListener("click", doing[button.dataset.does]));

  // The page of results: its field is what one came for, and of a page it quotes the article alone.
  document.querySelector(".bd-search-container .bd-search input")?.focus();
  if (typeof Search !== "undefined") {
    const plain = Search.htmlToText;
    Search.htmlToText = (text, anchor) => {
      const page = new DOMParser().parseFromString(text, "text/html");
      page.querySelectorAll(".bd-header-article, #jb-print-docs-body, .flow, .prev-next-area")
        .forEach((part) => part.remove());
      return plain(page.documentElement.outerHTML, anchor);
    };
  }
})();
