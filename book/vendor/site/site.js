// What every page needs besides the theme's scripts.
"use strict";
(() => {
  // Print on white, whatever the screen shows.
  const paper = matchMedia("print"), root = document.documentElement.dataset;
  let screen = root.theme;
  paper.addEventListener("change", () => {
    if (paper.matches) [screen, root.theme] = [root.theme, "light"];
    else root.theme = screen;
  });

  // Folded code is left out on paper, or it stands there open: html.print-code says which.
  let unfolded = [];
  addEventListener("beforeprint", () => {
    const chosen = document.documentElement.classList.contains("print-code");
    unfolded = chosen ? [...document.querySelectorAll("details.hide:not([open])")] : [];
    unfolded.forEach((fold) => (fold.open = true));
  });
  addEventListener("afterprint", () => unfolded.forEach((fold) => (fold.open = false)));

  // What is wider than the page scrolls by keyboard, too.
  const wide = document.querySelectorAll("article :is(.pst-scrollable-table-container, div.math, "
    + "pre, .cell_output, .dlsys-gpu table)");
  const watch = new ResizeObserver((seen) => seen.forEach(({ target }) => {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }));
  wide.forEach((box) => watch.observe(box));

  // The theme blurs the buttons of the bar to be rid of their tooltips, and a copy button loses the
  // focus to what it copies from: by keyboard one would begin again at the top of the page.
  addEventListener("DOMContentLoaded", () => document.querySelectorAll(".theme-switch-button, "
    + ".search-button, .primary-toggle, .secondary-toggle").forEach((button) => {
    button.blur = () => window.bootstrap?.Tooltip.getInstance(button)?.hide();
  }));
  // No attribute holds a script, so that a strict Content-Security-Policy may forbid them.
  const paperWith = (code) => {
    document.documentElement.classList.toggle("print-code", code);
    print();
  };
  const doing = { "download-pdf-button": () => paperWith(false),
    "print-code-button": () => paperWith(true), "fullscreen-button": () => toggleFullScreen() };
  document.querySelectorAll("[data-does]").forEach((button) =>
    button.addEventListener("click", doing[button.dataset.does]));
  const results = document.querySelector(".bd-search-container .bd-search input");
  results?.focus();

  // A pressed button keeps the focus; its tooltip goes with the pointer, or with the ring.
  const told = '[data-bs-toggle="tooltip"]:is(:hover, :focus-visible)';
  for (const type of ["pointerover", "pointerout", "focusin", "focusout"])
    document.addEventListener(type, () => document.documentElement.classList.toggle(
      "tips", document.querySelector(told) !== null));
  document.addEventListener("click", (event) => {
    const copy = event.composedPath().find((e) => e.matches?.(".copybtn"));
    copy?.focus({ preventScroll: true });
  });
})();
