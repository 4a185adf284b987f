// A transformer that writes letter by letter: weights from pack.py, loops over Float32Arrays.
// Shapes: V letters, d numbers a place, H heads of D = d / H, L blocks.

// ---- weights ----------------------------------------------------------------------------------
const GROUP = 32;

// The two bytes of a float16 as a number.
function half(h) {
  const [sign, exponent, fraction] = [h & 0x8000 ? -1 : 1, (h >> 10) & 31, h & 1023];
  return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024)
    : sign * 2 ** -24 * fraction;
}

// Packed bytes -> { shape, letters, notes of the header, tensors: name -> Float32Array }.
function unpack(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const start = 4 + view.getUint32(0, true);
  const { tensors: places, ...header } = JSON.parse(
    new TextDecoder().decode(bytes.subarray(4, start)));
  const tensors = {};
  for (const [name, size] of Object.entries(sizes(header.shape)))
    tensors[name] = (size.length === 1 ? floats : levels)(view, start + places[name], size);
  return { ...header, letters: [...header.letters], tensors };
}

function sizes({ letters: V, width: d, layers }) {
  const block = {
    "norm1.weight": [d], "norm1.bias": [d], "qkv.weight": [3 * d, d], "out.weight": [d, d],
    "norm2.weight": [d], "norm2.bias": [d], "up.weight": [4 * d, d], "up.bias": [4 * d],
    "down.weight": [d, 4 * d], "down.bias": [d],
  };
  const all = { "emb.weight": [V, d], "norm.weight": [d], "norm.bias": [d], "head.weight": [V, d] };
  for (let n = 0; n < layers; n++)
    for (const name in block) all[`blocks.${n}.${name}`] = block[name];
  return all;
}

const floats = (view, at, [count]) =>
  Float32Array.from({ length: count }, (_, i) => view.getFloat32(at + 4 * i, true));

// A matrix of codes on a grid for each group: scale * (code - zero).
function levels(view, at, [rows, columns]) {
  const count = rows * columns, groups = count / GROUP;
  const values = new Float32Array(count);
  for (let g = 0; g < groups; g++) {
    const zero = view.getUint8(at + count + g);
    const scale = half(view.getUint16(at + count + groups + 2 * g, true));
    for (let i = g * GROUP; i < (g + 1) * GROUP; i++)
      values[i] = scale * (view.getUint8(at + i) - zero);
  }
  return values;
}

// The same grid with fewer levels: what `quantise` of exercise 11.1 makes of the stored weights.
function regrid(values, bits) {
  const top = 2 ** bits - 1, coarse = new Float32Array(values.length);
  for (let at = 0; at < values.length; at += GROUP) {
    const group = values.subarray(at, at + GROUP);
    const low = Math.min(0, ...group), high = Math.max(0, ...group);
    const scale = (high - low) / top || 1;
    const zero = Math.round(-low / scale);
    group.forEach((value, i) => {
      const code = Math.round(value / scale) + zero;
      coarse[at + i] = scale * (Math.max(0, Math.min(top, code)) - zero);
    });
  }
  return coarse;
}

// The model with every matrix in fewer bits; vectors stay as they are.
function inBits(model, bits) {
  if (bits === 8) return model;
  const matrix = Object.fromEntries(
    Object.entries(sizes(model.shape)).map(([name, size]) => [name, size.length === 2]));
  const tensors = Object.entries(model.tensors).map(([name, values]) =>
    [name, matrix[name] ? regrid(values, bits) : values]);
  return { ...model, tensors: Object.fromEntries(tensors) };
}

// ---- layers -----------------------------------------------------------------------------------
// weight (rows, x.length) times x, plus bias. Four sums at once: an addition waits for the one
// before it, and the processor has time for three more.
function linear(x, weight, bias) {
  const columns = x.length, y = new Float32Array(weight.length / columns);
  for (let r = 0, at = 0; r < y.length; r++) {
    let a = bias ? bias[r] : 0, b = 0, c = 0, d = 0;
    for (let i = 0; i < columns; i += 4, at += 4) {
      a += weight[at] * x[i];
      b += weight[at + 1] * x[i + 1];
      c += weight[at + 2] * x[i + 2];
      d += weight[at + 3] * x[i + 3];
    }
    y[r] = a + b + c + d;
  }
  return y;
}

function layerNorm(x, weight, bias) {
  const mean = x.reduce((a, b) => a + b, 0) / x.length;
  const variance = x.reduce((a, b) => a + (b - mean) ** 2, 0) / x.length;
  const scale = 1 / Math.sqrt(variance + 1e-5);
  return x.map((v, i) => (v - mean) * scale * weight[i] + bias[i]);
}

// Numerical Recipes' Chebyshev form of erfc: its relative error is 1.2e-7 at most.
const ERF = [-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807,
  -1.13520398, 1.48851587, -0.82215223, 0.17087277];
function erf(x) {
  const t = 1 / (1 + Math.abs(x) / 2);
  const tail = t * Math.exp(ERF.reduceRight((sum, c) => sum * t + c, 0) - x * x);
  return x < 0 ? tail - 1 : 1 - tail;
}
const gelu = (x) => (x / 2) * (1 + erf(x / Math.SQRT2));

// RoPE: neighbours (x[2i], x[2i + 1]) of each head turn by place * 10000 ** (-2i / D). Angles are
// rounded to float32, as torch has them: at place 1,000 this is more than all other rounding.
function rotate(x, place, D) {
  for (let i = 0; i < x.length; i += 2) {
    const angle = Math.fround(place * Math.fround(10000 ** (-(i % D) / D)));
    const [cos, sin, a, b] = [Math.cos(angle), Math.sin(angle), x[i], x[i + 1]];
    x[i] = a * cos - b * sin;
    x[i + 1] = a * sin + b * cos;
  }
  return x;
}

const add = (x, y) => x.map((v, i) => v + y[i]);

// ---- attention with a cache -------------------------------------------------------------------
// What is kept of the places before: a key and a value each, in every block.
const emptyCache = ({ shape }) => ({
  place: 0, // of the next letter
  blocks: Array.from({ length: shape.layers }, () => ({ keys: [], values: [] })),
});

// The query q (d) of one place over the first `count` keys: the values' mean (d), and the weights
// of each head.
function attend(q, { keys, values }, count, H) {
  const D = q.length / H, mixed = new Float32Array(q.length), heads = [];
  for (let from = 0; from < q.length; from += D) {
    const weights = new Float32Array(count);
    for (let t = 0; t < count; t++) {
      const key = keys[t];
      let score = 0;
      for (let i = from; i < from + D; i++) score += q[i] * key[i];
      weights[t] = score / Math.sqrt(D);
    }
    softmax(weights);
    for (let t = 0; t < count; t++) {
      const value = values[t], weight = weights[t];
      for (let i = from; i < from + D; i++) mixed[i] += weight * value[i];
    }
    heads.push(weights);
  }
  return { mixed, heads };
}

// In place; the largest is taken off first, so that nothing overflows.
function softmax(x) {
  const most = x.reduce((a, b) => Math.max(a, b), -Infinity);
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += x[i] = Math.exp(x[i] - most);
  for (let i = 0; i < x.length; i++) x[i] /= sum;
}

// ---- one pass ---------------------------------------------------------------------------------
// New letters (numbers) behind those of the cache, which takes them in. `masked`: no place sees a
// later one. Gives the logits (V) of the last letter, and where it looked: [block][head][place].
function forward(model, ids, cache, masked = true) {
  const { tensors, shape: { width: d, heads: H, layers, length } } = model;
  const looked = [];
  let rows = ids.map((id) => tensors["emb.weight"].slice(id * d, (id + 1) * d));
  for (let n = 0; n < layers; n++) {
    const part = (name) => tensors[`blocks.${n}.${name}`];
    const norm = (x, name) => layerNorm(x, part(`${name}.weight`), part(`${name}.bias`));
    const held = cache.blocks[n];
    // The window: for RoPE only distances count, so the oldest places may go. What the later blocks
    // kept was computed with them, and stays.
    const beyond = Math.max(0, held.keys.length + ids.length - length);
    held.keys.splice(0, beyond);
    held.values.splice(0, beyond);
    const queries = rows.map((x, i) => {
      const qkv = linear(norm(x, "norm1"), part("qkv.weight"));
      held.keys.push(rotate(qkv.slice(d, 2 * d), cache.place + i, d / H));
      held.values.push(qkv.slice(2 * d));
      return rotate(qkv.slice(0, d), cache.place + i, d / H);
    });
    const before = held.keys.length - rows.length;
    rows = rows.map((x, i) => {
      const count = masked ? before + i + 1 : held.keys.length;
      const { mixed, heads } = attend(queries[i], held, count, H);
      looked[n] = heads;
      const middle = add(x, linear(mixed, part("out.weight")));
      const up = linear(norm(middle, "norm2"), part("up.weight"), part("up.bias"));
      return add(middle, linear(up.map(gelu), part("down.weight"), part("down.bias")));
    });
  }
  cache.place += ids.length;
  const last = layerNorm(rows.at(-1), tensors["norm.weight"], tensors["norm.bias"]);
  return { logits: linear(last, tensors["head.weight"]), looked };
}

// ---- writing ----------------------------------------------------------------------------------
// Random numbers in [0, 1) from a seed: mulberry32, so that a text can be written again.
function seeded(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

// A letter drawn from the softmax of logits / temperature; at 0 the most probable.
function draw(logits, temperature, random) {
  if (temperature === 0) return logits.indexOf(logits.reduce((a, b) => Math.max(a, b)));
  const chances = logits.map((z) => z / temperature);
  softmax(chances);
  let left = random();
  const at = chances.findIndex((p) => (left -= p) < 0);
  return at < 0 ? chances.length - 1 : at; // the chances add up to 1 but for rounding
}

const encode = (model, text) => [...text].map((letter) => model.letters.indexOf(letter));

// Writes on from `prompt` (numbers), a letter at a time: { id, looked } without an end. `looked`
// is the pass that the letter was drawn from. Without the cache, and without the mask, which the
// cache rests on, each letter costs a pass over the last `length` places.
function* write(model, prompt, { temperature, seed, cached, masked }) {
  const random = seeded(seed), { length } = model.shape;
  const ids = prompt.slice(-length);
  const keep = emptyCache(model);
  let pass = forward(model, ids, keep, masked);
  for (;;) {
    const id = draw(pass.logits, temperature, random);
    yield { id, looked: pass.looked };
    ids.push(id);
    pass = cached && masked ? forward(model, [id], keep)
      : forward(model, ids.slice(-length), emptyCache(model), masked);
  }
}
