// Starts reveal.js, keeps each slide within its frame, switches between light and dark.
"use strict";

const HEIGHT = 720; // pixels
const LARGEST = 125, READABLE = 75, SMALLEST = 56; // percent of the usual size of letters

function tooLarge(slide) {
  return slide.scrollHeight > HEIGHT
    || [...slide.querySelectorAll("pre")].some((pre) => pre.scrollWidth > pre.clientWidth);
}

// The largest letters with which a slide stays within its frame; all its sizes are in em. Where
// long lines would make them too small, the lines are wrapped.
function fit(slide) {
  if (!slide || slide.querySelector("section")) return;
  for (const wrap of [false, true]) {
    slide.classList.toggle("wrap", wrap);
    for (let size = LARGEST; size >= (wrap ? SMALLEST : READABLE); size -= 3) {
      slide.style.fontSize = `${size}%`;
      if (!tooLarge(slide)) return;
    }
  }
}

function switchColours() {
  const root = document.documentElement;
  const dark = root.style.colorScheme
    ? root.style.colorScheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.style.colorScheme = dark ? "light" : "dark";
}

Reveal.initialize({
  width: 1280, height: HEIGHT, margin: 0.02, center: false, hash: true, slideNumber: "c/t",
  transition: "none", backgroundTransition: "none", pdfMaxPagesPerSlide: 1,
});
Reveal.addKeyBinding({ keyCode: 68, key: "D", description: "Light or dark" }, switchColours);
Reveal.on("ready", (event) => fit(event.currentSlide));
Reveal.on("slidechanged", (event) => fit(event.currentSlide));
Reveal.on("pdf-ready", () => document.querySelectorAll(".slides section").forEach(fit));
