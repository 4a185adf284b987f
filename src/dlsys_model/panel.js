// The engine with a place to type, switches, and the text that it writes. Everything is made of
// native controls; the look is the explorers'.

const LETTERS = 600; // far beyond the length of a row in training
const PROMPT = "The gradient of the loss ";
const BUSY_MS = 12; // of a frame, so that the page answers while it writes

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const name in attributes) node.setAttribute(name, attributes[name]);
  node.append(...children);
  return node;
}
const uniqueId = () => "lm" + Math.random().toString(36).slice(2);
// JupyterLab takes the keys unless the focused element itself says no.
const KEYS = { "data-lm-suppress-shortcuts": "true" };

// ---- weights: in the page, or in a script beside it, which a page opened from disk may load -----
async function fetched(root) {
  const inside = root.querySelector("script[type='text/plain']")?.textContent;
  const base64 = inside ?? (await loaded(root.dataset.model));
  return unpack(Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)));
}

const loaded = (address) => new Promise((done, failed) => {
  const script = el("script", { src: address });
  script.onload = () => done(window.dlsysModel);
  script.onerror = () => failed(new Error("The weights did not load. Reload the page."));
  document.head.append(script);
});

// ---- controls ---------------------------------------------------------------------------------
// A row of buttons of which one is pressed: { node, get, allow }; `first` is at the beginning.
function choice(legend, options, onChange = () => {}, first = 0) {
  const name = uniqueId();
  const inputs = options.map((_, i) => el("input", { ...KEYS, type: "radio", name, id: name + i }));
  const parts = options.flatMap((option, i) => [inputs[i], el("label", { for: name + i }, option)]);
  inputs[first].checked = true;
  inputs.forEach((input) => input.addEventListener("change", onChange));
  const node = el("fieldset", { class: "xp-choice" }, el("legend", {}, legend),
    el("div", { class: "xp-options" }, ...parts));
  return { node, get: () => inputs.findIndex((input) => input.checked),
    allow: (is) => (node.disabled = !is) };
}

function temperature() {
  const id = uniqueId(), now = el("output", { class: "xp-now", for: id });
  const input = el("input", { ...KEYS, type: "range", id, min: 0, max: 1.5, step: 0.1, value: 0.6 });
  const show = () => (now.textContent = (+input.value).toFixed(1));
  input.addEventListener("input", show);
  show();
  return { node: el("div", { class: "xp-slider" },
    el("label", { for: id }, "Temperature"), now, input), get: () => +input.value };
}

function field(label, type, value) {
  const input = el("input", { ...KEYS, type, value, maxlength: 200 });
  return { node: el("label", { class: `lm-field lm-${type}` }, el("span", {}, label), input),
    get: () => input.value };
}

// ---- what is said -----------------------------------------------------------------------------
const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
const shown = (letter) => ({ "\n": "a line break", " ": "a space" })[letter] ?? `\u201c${letter}\u201d`;

// Kilobytes of all weights at this many bits, with a zero for each group, and its scale: of the 8
// bits that are stored a float16, of fewer, which are made here, a float32.
function kilobytes({ shape, tensors }, bits) {
  const all = Object.entries(sizes(shape)).map(([name, size]) => [tensors[name].length, size.length]);
  const more = bits === 8 ? 3 : 5;
  const bytes = all.map(([n, dims]) => (dims === 2 ? (n * bits) / 8 + (n / GROUP) * more : 4 * n));
  return Math.round(bytes.reduce((a, b) => a + b) / 1000);
}

// How it went, in numbers.
function account(model, { count, busy, bits, cached, masked, left }) {
  const how = !masked ? "without the mask, which the cache relies on"
    : cached ? "with the cache" : "without the cache";
  const loss = masked && model.validation?.[bits];
  // A clock that a browser keeps coarse may not have moved.
  const speed = busy ? `, ${Math.round((1000 * count) / busy)} per second` : "";
  return (left.length ? `Left out, because it was trained without them: ${left.join(" ")}. ` : "") +
    `${count} letters${speed} ${how}. In ${bits} bits its ` +
    `weights take ${kilobytes(model, bits)}\u00a0kB` +
    (loss ? `, and its loss on held-out text is ${loss.toFixed(2)} nats per letter.` : ".");
}

// ---- where the last letter looked -------------------------------------------------------------
// The weights on the places before the last letter, of one head or the mean of all, and the most
// looked at. `from`: the first of these places in the text.
function attention({ letters, looked }, block, head) {
  const heads = head ? [looked[block][head - 1]] : looked[block];
  const weights = heads[0].map((_, t) => heads.reduce((sum, one) => sum + one[t], 0) / heads.length);
  const most = weights.reduce((a, b) => Math.max(a, b));
  return { weights, most, from: letters.length - 1 - weights.length };
}

// The text with these places darker, the more it looked there.
function shade(node, letters, { weights, most, from }) {
  const places = [...weights].map((weight, t) =>
    weight < most / 20 ? letters[from + t] : marked(letters[from + t], weight / most));
  node.replaceChildren(letters.slice(0, from).join(""), ...places, el("b", {}, letters.at(-1)));
  node.normalize();
}

function marked(letter, strength) {
  const node = el("span", { class: "lm-seen" }, letter);
  node.style.setProperty("--seen", `${Math.round(60 * strength)}%`);
  return node;
}

function inWords(letters, { weights, most, from }, block, head) {
  const at = weights.indexOf(most), who = head ? `head ${head}` : "the mean of its heads";
  return `Before the last letter, ${shown(letters.at(-1))}, ${who} in block ${block + 1} looks ` +
    `most at ${shown(letters[from + at])}, ${weights.length - at} back: ${percent(most)} of the ` +
    "attention.";
}

// ---- the panel --------------------------------------------------------------------------------
const BITS = [8, 4, 3], SWITCH = ["on", "off"];
const isOn = (control) => control.get() === 0;
const numbers = (count) => Array.from({ length: count }, (_, i) => i + 1);
const frame = () => new Promise(requestAnimationFrame);

// What one sets and sees; `look` is called when another block or head is chosen.
function parts({ shape: { layers, heads } }, look) {
  const bits = choice("Bits per weight", BITS), cache = choice("Cache", SWITCH);
  const mask = choice("Causal mask", SWITCH, () => cache.allow(isOn(mask)));
  return { bits, cache, mask, heat: temperature(), seed: field("Seed", "number", 1),
    prompt: field("Begin with", "text", PROMPT),
    button: el("button", { ...KEYS, class: "lm-button" }, "Write"),
    text: el("div", { class: "lm-page" }),
    block: choice("Attention in block", numbers(layers), look, layers - 1),
    head: choice("of head", ["all", ...numbers(heads)], look),
    say: el("p", { class: "xp-say", "aria-live": "polite" }, `${LETTERS} letters, one after the ` +
      "other: each is drawn from what the model expects next.") };
}

function place(root, { prompt, button, heat, bits, mask, cache, seed, text, block, head, say }) {
  const form = el("form", { class: "lm-ask" }, prompt.node, button);
  root.querySelector(".lm-wait").remove();
  root.querySelector(".xp-title").after(form,
    el("div", { class: "lm-controls" }, heat.node, bits.node, mask.node, cache.node, seed.node),
    text, el("div", { class: "lm-controls lm-look" }, block.node, head.node), say);
  // JupyterLab keeps Enter from a form.
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing || event.target === button) return;
    event.preventDefault();
    form.requestSubmit();
  });
  return form;
}

// Builds the panel; returns what makes it write. `paced`: a letter a frame, for the eye.
function panel(root, model) {
  const coarser = {}; // models in fewer bits, made once
  let running = null, last = null;
  const on = parts(model, () => last && look());
  const form = place(root, on);

  function look() {
    const [block, head] = [on.block.get(), on.head.get()];
    const seen = attention(last, block, head);
    shade(on.text, last.letters, seen);
    on.say.textContent = `${last.account} ${inWords(last.letters, seen, block, head)}`;
  }

  // The letters of the prompt that the model knows, and those that it does not.
  function asked() {
    const typed = [...on.prompt.get()], knows = (letter) => model.letters.includes(letter);
    const known = typed.filter(knows);
    return { letters: known.length ? known : [model.letters[0]],
      left: [...new Set(typed)].filter((letter) => !knows(letter)) };
  }

  async function run(paced) {
    const mine = (running = {}), { letters, left } = asked();
    const chosen = { bits: BITS[on.bits.get()], cached: isOn(on.cache), masked: isOn(on.mask),
      temperature: on.heat.get(), seed: Math.trunc(on.seed.get()) };
    on.button.textContent = "Stop";
    on.say.textContent = "It writes.";
    on.text.textContent = letters.join("");
    await frame();
    const used = (coarser[chosen.bits] ??= inBits(model, chosen.bits));
    const writer = write(used, encode(model, letters.join("")), chosen);
    let busy = 0, count = 0, looked;
    do {
      const begin = performance.now();
      do {
        const next = writer.next().value;
        letters.push(model.letters[next.id]);
        looked = next.looked;
        count++;
      } while (!paced && count < LETTERS && performance.now() - begin < BUSY_MS);
      busy += performance.now() - begin;
      on.text.textContent = letters.join("");
      await frame();
    } while (count < LETTERS && running === mine);
    if (running && running !== mine) return; // stopped, and already asked to write anew
    running = null;
    on.button.textContent = "Write";
    last = { letters, looked, account: account(model, { ...chosen, left, count, busy }) };
    root.dataset.written = count;
    look();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) running = null;
    else run(false);
  });
  return run;
}

// ---- on a page --------------------------------------------------------------------------------
async function mount(root) {
  try {
    const run = panel(root, await fetched(root));
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (root.hasAttribute("data-start") && !still) run(true);
  } catch (error) {
    root.append(el("p", { class: "xp-problem", role: "alert" }, error.message));
    throw error;
  }
}

// The weights are fetched when the panel comes near the screen.
const watcher = new IntersectionObserver((found) => {
  for (const { isIntersecting, target } of found)
    if (isIntersecting) {
      watcher.unobserve(target);
      mount(target);
    }
}, { rootMargin: "200px" });
// In a notebook each panel brings this script along: none is mounted twice.
document.querySelectorAll("[data-model][data-waits]").forEach((root) => {
  root.removeAttribute("data-waits");
  watcher.observe(root);
});
