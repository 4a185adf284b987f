// Starts reveal.js, keeps each slide within its frame, switches between light and dark; counts hands,
// runs the countdown of an exercise, and shows a room in a frame.
"use strict";

const HEIGHT = 720; // pixels
// Percent of the usual size of letters; words alone may be larger than words next to a figure.
const LARGEST = 150, LARGEST_WITH_FIGURE = 125, LEAST_WITH_CODE = 100, LEAST = 80;
// Pixels in height below which letters give way to a figure. The letters of the figure itself need
// data-least: it is never shown smaller.
const FIGURE = 420;

function tooLarge(slide) {
  return slide.scrollHeight > HEIGHT
    || [...slide.querySelectorAll("pre")].some((pre) => pre.scrollWidth > pre.clientWidth);
}

// The largest letters with which a slide stays within its frame; all its sizes are in em. A figure
// takes the room that the words leave. A printed line that is too long at the usual size is wrapped.
function fit(slide) {
  if (!slide || slide.querySelector("section")) return;
  const code = slide.querySelector(".jp-InputArea pre"), printed = slide.querySelector("pre");
  const figures = [...slide.querySelectorAll("img")];
  const largest = figures.length ? LARGEST_WITH_FIGURE : LARGEST;
  const tries = [[false, 0, printed ? LEAST_WITH_CODE : LEAST],
    [true, 0, code ? LEAST_WITH_CODE : LEAST]];
  if (figures.length) tries.unshift([false, FIGURE, 100]);
  for (const [wrap, height, smallest] of tries) {
    slide.classList.toggle("wrap", wrap);
    for (let size = largest; size >= smallest; size -= 5) {
      slide.style.fontSize = `${size}%`;
      figures.forEach((img) => { img.style.maxHeight = ""; });
      const over = Math.max(0, slide.scrollHeight - HEIGHT);
      figures.forEach((img) => {
        const least = Math.max(height, Number(img.dataset.least));
        img.style.maxHeight = `${Math.max(least, img.offsetHeight - over)}px`;
      });
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

// ---- hands: keys 1 to 4 count them on the slide of a guess, backspace takes the last one back
const counted = {}, raised = []; // by trap; in order

function raise(choice) {
  const id = Reveal.getCurrentSlide().querySelector(".choices")?.dataset.guess;
  if (!id || choice >= Reveal.getCurrentSlide().querySelectorAll(".choices li").length) return;
  (counted[id] ??= [0, 0, 0, 0])[choice] += 1;
  raised.push([id, choice]);
  drawHands(id);
}

function takeBack() {
  const [id, choice] = raised.pop() ?? [];
  if (!id) return;
  counted[id][choice] -= 1;
  drawHands(id);
}

// Bars next to the choices, and again next to the measurement.
function drawHands(id) {
  const most = Math.max(1, ...counted[id]);
  const bar = (n) => {
    const node = document.createElement("span");
    node.className = "hand";
    node.style.setProperty("--share", n / most);
    node.textContent = n;
    return node;
  };
  const choices = [...document.querySelectorAll(`.choices[data-guess="${id}"] > li`)];
  choices.forEach((li, k) => {
    li.querySelector(".hand")?.remove();
    li.append(bar(counted[id][k]));
  });
  for (const place of document.querySelectorAll(`.hands[data-guess="${id}"]`)) {
    place.replaceChildren(...choices.map((_, k) => {
      const row = document.createElement("div");
      row.append(`${"ABCD"[k]} `, bar(counted[id][k]));
      return row;
    }));
  }
  fit(Reveal.getCurrentSlide());
}

// ---- the countdown of an exercise
let until = 0, ticking = null;

function countDown() {
  const clock = Reveal.getCurrentSlide().querySelector(".clock");
  clearInterval(ticking);
  if (!clock) return;
  const minutes = Number(clock.dataset.minutes);
  if (until) {
    until = 0;
    clock.textContent = `${minutes}:00`;
    return;
  }
  until = Date.now() + minutes * 60000;
  const show = () => {
    const left = Math.max(0, Math.round((until - Date.now()) / 1000));
    clock.textContent = left ? `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`
      : "Time is up";
  };
  show();
  ticking = setInterval(show, 1000);
}

// ---- a room in a frame: dlsys room prints an address with the presenter's secret, which a
// projector must never show. It comes after #room= or by a paste, and is stored nowhere.
const ROOM = /^https?:\/\/\S+\/present#\S+$/;
let frame = null, note = null;

function kept() { // a browser may forbid a page to keep anything
  try {
    return window.sessionStorage;
  } catch {
    return { getItem: () => null, setItem() {} };
  }
}

let address = kept().getItem("dlsys-room") ?? "";
function know(said) {
  if (!ROOM.test(said)) return false;
  address = said;
  kept().setItem("dlsys-room", said);
  return true;
}

if (location.hash.startsWith("#room=")) {
  know(location.hash.slice(6));
  history.replaceState(null, "", location.pathname + location.search);
}

function showRoom() {
  if (frame) return hideRoom();
  if (!address) return ask();
  const trap = Reveal.getCurrentSlide().querySelector("[data-guess]")?.dataset.guess;
  frame = document.createElement("iframe");
  frame.className = "room";
  frame.title = "The room";
  frame.src = trap ? address.replace("#", `?trap=${trap}#`) : address;
  frame.addEventListener("load", () => frame.focus()); // its keys are the presenter's
  document.body.append(frame);
}

const HOW = "These slides know no room yet. Copy the presenter’s address where the class cannot see "
  + "it, come back and press Ctrl+V: it is not shown. Next time, open the slides with the address "
  + "that dlsys room prints after “Slides”. R closes this.";

function ask(words = HOW) {
  const open = note;
  note?.remove();
  note = null;
  if (open && words === HOW) return;
  note = document.createElement("p");
  note.className = "note";
  note.role = "status";
  note.textContent = words;
  document.body.append(note);
}

document.addEventListener("paste", (event) => {
  if (!note) return;
  if (know(event.clipboardData.getData("text").trim())) {
    ask();
    showRoom();
  } else ask("That was not a presenter’s address, such as http://127.0.0.1:8228/present#… Copy "
    + "it again, and press Ctrl+V. R closes this.");
});

function hideRoom() {
  frame?.remove();
  frame = null;
  window.focus();
}

window.addEventListener("message", (event) => {
  if (frame && event.source === frame.contentWindow && event.data === "dlsys-room-close") hideRoom();
});

Reveal.initialize({
  width: 1280, height: HEIGHT, margin: 0, center: false, hash: true, slideNumber: "c/t",
  transition: "none", backgroundTransition: "none", pdfMaxPagesPerSlide: 1,
  plugins: [RevealNotes],
});
Reveal.addKeyBinding({ keyCode: 68, key: "D", description: "Light or dark" }, switchColours);
for (let k = 0; k < 4; k++)
  Reveal.addKeyBinding({ keyCode: 49 + k, key: k + 1, description: `A hand for ${"ABCD"[k]}` },
    () => raise(k));
Reveal.addKeyBinding({ keyCode: 8, key: "Backspace", description: "Take a hand back" }, takeBack);
Reveal.addKeyBinding({ keyCode: 84, key: "T", description: "Countdown of an exercise" }, countDown);
Reveal.addKeyBinding({ keyCode: 82, key: "R", description: "The room" }, showRoom);
Reveal.on("ready", (event) => fit(event.currentSlide));
Reveal.on("slidechanged", (event) => fit(event.currentSlide));
Reveal.on("pdf-ready", () => document.querySelectorAll(".slides section").forEach(fit));
