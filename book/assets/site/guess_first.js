// Runs before what follows it is painted: what follows a question is hidden until it is answered, and
// of the parts of a lesson one is shown, unless the reader chose to see all. localStorage may be
// forbidden. Without JavaScript nothing is hidden.
"use strict";
{
  const chosen = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
  const root = document.documentElement.classList;
  const { lesson, trap } = document.currentScript.dataset;
  root.toggle("scripted", lesson !== undefined);
  root.toggle("guess-first", (lesson ?? trap) === undefined || chosen("dlsys-show-everything") !== "yes");
  root.toggle("one-part", lesson !== undefined && chosen("dlsys-parts") !== "whole");
}
