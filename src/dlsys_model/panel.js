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
function choice(legend, options, onChange, first = 0) {
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

function temperature(onChange) {
  const id = uniqueId(), now = el("output", { class: "xp-now", for: id });
  const input = el("input", { ...KEYS, type: "range", id, min: 0, max: 1.5, step: 0.1, value: 0.7 });
  const show = () => (now.textContent = (+input.value).toFixed(1));
  input.addEventListener("input", () => (show(), onChange()));
  show();
  return { node: el("div", { class: "xp-slider" },
    el("label", { for: id }, "Temperature"), now, input), get: () => +input.value };
}

function field(label, type, value, onChange) {
  const input = el("input", { ...KEYS, type, value });
  input.addEventListener("change", onChange);
  return { node: el("label", { class: `lm-field lm-${type}` }, el("span", {}, label), input),
    get: () => input.value };
}

// ---- what is said -----------------------------------------------------------------------------
const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
const shown = (letter) => ({ "\n": "a line break", " ": "a space" })[letter] ?? `\u201c${letter}\u201d`;

// Kilobytes of all weights at this many bits, with a scale and a zero for each group.
function kilobytes({ shape, tensors }, bits) {
  const all = Object.entries(sizes(shape)).map(([name, size]) => [tensors[name].length, size.length]);
  const bytes = all.map(([n, dims]) => (dims === 2 ? (n * bits) / 8 + (n / GROUP) * 3 : 4 * n));
  return Math.round(bytes.reduce((a, b) => a + b) / 1000);
}

// The mean of some heads' weights on each place.
const meanOf = (heads) =>
  heads[0].map((_, t) => heads.reduce((sum, head) => sum + head[t], 0) / heads.length);

// ---- the panel --------------------------------------------------------------------------------
function panel(root, model) {
  const coarse = {}; // models in fewer bits, made once
  const inThese = (bits) => (coarse[bits] ??= inBits(model, bits));
  const { layers, heads } = model.shape;
  let running = null, last = null;

  const prompt = field("Begin with", "text", PROMPT, () => {});
  prompt.node.querySelector("input").maxLength = 200;
  const button = el("button", { ...KEYS, class: "lm-button" }, "Write");
  const form = el("form", { class: "lm-ask" }, prompt.node, button);
  const heat = temperature(() => {});
  const BITS = [8, 4, 3];
  const bits = choice("Bits a weight", BITS, () => {});
  const mask = choice("Causal mask", ["on", "off"], () => cache.allow(mask.get() === 0));
  const cache = choice("Cache", ["on", "off"], () => {});
  const seed = field("Seed", "number", 1, () => {});
  const text = el("div", { class: "lm-page" });
  const say = el("p", { class: "xp-say", "aria-live": "polite" },
    `${LETTERS} letters, one after the other: each is drawn from what the model expects next.`);
  const block = choice("Attention in block", numbers(layers), () => look(), layers - 1);
  const head = choice("of head", ["all", ...numbers(heads)], () => look());

  root.querySelectorAll(":scope > .lm-wait").forEach((node) => node.remove());
  root.querySelector(".xp-title").after(form,
    el("div", { class: "xp-controls" }, heat.node, bits.node, mask.node, cache.node, seed.node),
    text, el("div", { class: "xp-controls lm-look" }, block.node, head.node), say);

  // The places that the last letter was drawn from, the darker the more it looked there.
  function look() {
    if (!last) return;
    const chosen = last.looked[block.get()];
    const weights = meanOf(head.get() ? [chosen[head.get() - 1]] : chosen);
    const most = weights.reduce((a, b) => Math.max(a, b));
    const from = last.all.length - 1 - weights.length, parts = [last.all.slice(0, from).join("")];
    weights.forEach((weight, t) => {
      const letter = last.all[from + t];
      if (weight < most / 20) parts.push(letter);
      else parts.push(marked(letter, weight / most));
    });
    text.replaceChildren(...parts, el("b", {}, last.all.at(-1)));
    text.normalize();
    const t = weights.indexOf(most), back = weights.length - t;
    const who = head.get() ? `head ${head.get()}` : "the mean of its heads";
    say.textContent = `${last.sentence} Before the last letter, ${shown(last.all.at(-1))}, ${who} ` +
      `in block ${block.get() + 1} looks most at ${shown(last.all[from + t])}, ${back} back: ` +
      `${percent(most)} of the attention.`;
  }

  async function run(pace) {
    const mine = (running = {}), size = BITS[bits.get()];
    const chosen = { temperature: heat.get(), seed: Math.trunc(+seed.get()) || 0,
      cached: cache.get() === 0, masked: mask.get() === 0 };
    const known = [...prompt.get()].filter((c) => model.letters.includes(c));
    const left = [...new Set(prompt.get())].filter((c) => !model.letters.includes(c));
    if (!known.length) known.push(model.letters[0]);
    button.textContent = "Stop";
    say.textContent = "It writes.";
    await frame();
    const writer = write(inThese(size), encode(model, known.join("")), chosen);
    const all = [...known];
    text.replaceChildren(known.join(""));
    let busy = 0, count = 0, looked;
    while (count < LETTERS && running === mine) {
      const begin = performance.now();
      do {
        const next = writer.next().value;
        all.push(model.letters[next.id]);
        looked = next.looked;
        count++;
      } while (!pace && count < LETTERS && performance.now() - begin < BUSY_MS);
      busy += performance.now() - begin;
      text.textContent = all.join("");
      await frame();
    }
    if (running && running !== mine) return; // stopped, and already asked to write anew
    running = null;
    button.textContent = "Write";
    last = { all, looked, sentence: sentence(count, busy, size, chosen, left) };
    root.dataset.written = count;
    look();
  }

  function sentence(count, busy, size, { cached, masked }, left) {
    const how = !masked ? "without the mask, which the cache rests on"
      : cached ? "with the cache" : "without the cache";
    const loss = masked && model.validation?.[size];
    return (left.length ? `Left out, since it was trained without: ${left.join(" ")}. ` : "") +
      `${count} letters, ${Math.round((1000 * count) / busy)} a second ${how}. In ${size} bits its ` +
      `weights take ${kilobytes(model, size)}\u00a0kB` +
      (loss ? `, and its loss on text kept apart is ${loss.toFixed(2)} nats a letter.` : ".");
  }

  // JupyterLab keeps Enter from a form.
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing || event.target === button) return;
    event.preventDefault();
    form.requestSubmit();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) running = null;
    else run(false);
  });
  return run;
}

const numbers = (count) => Array.from({ length: count }, (_, i) => i + 1);
const frame = () => new Promise(requestAnimationFrame);

function marked(letter, strength) {
  const node = el("span", { class: "lm-seen" }, letter);
  node.style.setProperty("--seen", `${Math.round(60 * strength)}%`);
  return node;
}

// ---- on a page --------------------------------------------------------------------------------
async function mount(root) {
  root.removeAttribute("data-waits");
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
document.querySelectorAll("[data-model][data-waits]").forEach((root) => watcher.observe(root));
