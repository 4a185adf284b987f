// In the head, so it runs before the first paint: light or dark as the reader chose, for the theme.
// localStorage may be forbidden.
"use strict";
{
  const chosen = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
  const root = document.documentElement;
  root.dataset.mode = chosen("mode") || "auto";
  root.dataset.theme = chosen("theme") || "auto";
  root.classList.add("has-script");
}
