// Pictures of a round. Before and after differ by shape and words, sure and not sure by fill and
// stripes, right by a tick: never by colour alone.
import { count, el, rich } from "./room.js";

const SVG = "http://www.w3.org/2000/svg";
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const name in attributes) node.setAttribute(name, attributes[name]);
  node.append(...children);
  return node;
}

export function results(found) {
  return [found.choices ? bars(found) : dots(found.dots, found),
    key(found), found.flow ? flow(found.flow, found) : null].filter(Boolean);
}

const WHEN = ["before", "after"];
const total = ({ sure, unsure = 0 }) => sure + unsure;
const share = (n, all) => (all ? Math.round((100 * n) / all) : 0);

function key(found) {
  const two = found.counts.length > 1;
  return el("p", { class: found.dots ? "key round" : "key" }, el("span", { class: "chip sure" }), " sure  ",
    el("span", { class: "chip unsure" }), " not sure",
    `  ·  ${count(found.counts[0], "answer")}`,
    two ? ` before, ${found.counts[1]} after` : "");
}

// ---- choices
export function bars({ choices, counts, tick = "measured" }) {
  return el("ol", { class: "bars" }, ...choices.map((choice) =>
    el("li", { class: choice.right ? "right" : "" },
      el("span", { class: "letter" }, choice.letter),
      el("div", {},
        el("p", { class: "choice" }, ...rich(choice.text),
          choice.right ? el("strong", { class: "tick" }, ` ✓ ${tick}`) : null),
        ...choice.bars.map((bar, k) => row(bar, k, counts))))));
}

function row(bar, k, counts) {
  const all = total(bar), percent = share(all, counts[k]);
  const track = el("span", { class: "track", "aria-hidden": "true" });
  for (const kind of ["sure", "unsure"]) {
    const part = el("span", { class: kind });
    part.style.width = `${counts[k] ? (100 * (bar[kind] ?? 0)) / counts[k] : 0}%`;
    track.append(part);
  }
  return el("div", { class: `bar ${WHEN[k]}` },
    counts.length > 1 ? el("span", { class: "when" }, WHEN[k]) : null, track,
    el("span", { class: "number" }, `${percent} %`,
      el("span", { class: "unseen" }, `, ${all}`,
        bar.unsure === undefined ? "" : `, of them ${bar.sure} sure`)));
}

// ---- numbers
const ROW = 172, SIDE = 60;
const BANDNAME = 116; // half the width of "counts as right"
let WIDTH = 1000; // of the picture in its own units: letters stay readable where it is small
const narrow = () => window.innerWidth < 760;

function dots({ low, high, unit, rows, band }, { counts, right, flow }) {
  WIDTH = narrow() ? 560 : flow ? 640 : 1000;
  const x = (v) => SIDE + ((v - low) / (high - low)) * (WIDTH - 2 * SIDE);
  const height = ROW * rows.length + 46;
  const words = rows.map((_, k) => `${rows.length > 1 ? WHEN[k] + ": " : ""}`
    + [count(counts[k], "answer"), ...outside(rows[k], low, high)].join(", ")
    + (band ? `, ${right[k]} of them between ${band[0]} and ${band[1]} ${unit}` : ""));
  const picture = svg("svg", { class: "dots", viewBox: `0 0 ${WIDTH} ${height}`, role: "img",
    "aria-label": `Guesses from ${round(low)} to ${round(high)} ${unit}. ${words.join("; ")}` });
  if (band) picture.append(
    svg("rect", { class: "band", x: x(band[0]), width: Math.max(3, x(band[1]) - x(band[0])), y: 0,
      height: ROW * rows.length }),
    text(Math.min(Math.max((x(band[0]) + x(band[1])) / 2, BANDNAME), WIDTH - BANDNAME), 18,
      "counts as right", "bandname"));
  rows.forEach((r, k) => picture.append(...dotRow(r, k, rows.length, [low, high])));
  const base = ROW * rows.length;
  picture.append(svg("line", { class: "axis", x1: SIDE, x2: WIDTH - SIDE, y1: base, y2: base }));
  // Neighbouring ticks that differ in a late digit must not read the same.
  const digits = 2 + Math.ceil(Math.log10(Math.max(-low, high) / (high - low) * 10));
  const longest = Math.max(...[low, high].map((v) => round(v, digits).length));
  const most = Math.min(5, Math.floor((WIDTH - 2 * SIDE) / (14 * longest + 20))) || 1;
  for (const tick of ticks(low, high, most))
    picture.append(svg("line", { class: "axis", x1: x(tick), x2: x(tick), y1: base, y2: base + 7 }),
      text(x(tick), base + 34, `${round(tick, digits)} ${unit === "%" ? unit : ""}`.trim(), "tickname"));
  return el("figure", {}, picture);
}

// How many answers lie beyond each end of the axis, in words.
function outside({ below, above }, low, high) {
  return [below && `${below} below ${round(low)}`, above && `${above} above ${round(high)}`]
    .filter(Boolean);
}

function dotRow({ columns, below, above }, k, of, [low, high]) {
  const step = (WIDTH - 2 * SIDE) / 39, base = ROW * (k + 1) - 6;
  const tallest = Math.max(1, ...columns.map(([, sure, unsure]) => sure + unsure));
  const gap = Math.min(23, (ROW - 64) / tallest);
  const radius = Math.max(2, Math.min(step * 0.46, gap / 2 - 0.6));
  const nodes = [];
  for (const [place, sure, unsure] of columns)
    for (let n = 0; n < sure + unsure; n++)
      nodes.push(svg("circle", { class: n < sure ? "sure" : "unsure", r: radius,
        cx: SIDE + place * step, cy: base - radius - n * gap }));
  const line = ROW * k + 46;
  const left = [of > 1 && WHEN[k], below && `◂ ${below} below ${round(low)}`].filter(Boolean);
  if (left.length) nodes.push(text(4, line, left.join("  "), "rowname"));
  if (above) nodes.push(text(WIDTH - 4, line, `${above} above ${round(high)} ▸`, "rowname end"));
  return nodes;
}

function text(x, y, words, kind) {
  return svg("text", { x, y, class: kind }, words);
}

// Short enough for a tick: 12,500, 3M for three million, 2e-5, 1e15.
function round(v, digits = 3) {
  const size = Math.abs(v);
  if (size && (size < 1e-3 || size >= 1e15))
    return Number(v.toPrecision(digits)).toExponential().replace("e+", "e");
  return v.toLocaleString("en", { maximumSignificantDigits: digits,
    notation: size < 1e6 ? "standard" : "compact" });
}

function ticks(low, high, most) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  // Multiples, not sums, so that zero is zero; and never -0.
  for (let k = Math.ceil(low / step); k * step <= high + step / 1e6; k++) found.push(k * step || 0);
  return found;
}

// ---- who changed to what
const FLOW_H = 300, NODE = 16;
let FLOW_W = 420;

function flow({ names, counts }) {
  const total = counts.flat().reduce((a, b) => a + b, 0);
  if (!total) return null;
  const gap = 12, unit = (FLOW_H - gap * (names.length - 1)) / total;
  const stay = names.reduce((sum, _, k) => sum + counts[k][k], 0);
  const left = starts(names.map((_, a) => sum(counts[a])), unit, gap);
  const right = starts(names.map((_, b) => sum(counts.map((r) => r[b]))), unit, gap);
  const changes = names.flatMap((a, i) => names.map((b, j) => [counts[i][j], a, b, i === j]))
    .filter(([n, , , same]) => n && !same).sort((p, q) => q[0] - p[0]);
  const words = changes.map(([n, a, b]) => `${n} from ${a} to ${b}`).join(", ") || "nobody changed";
  FLOW_W = narrow() ? 180 : names[0].length > 1 ? 240 : 420;
  const wide = names[0].length > 1 ? 200 : 80; // room for the names
  const picture = svg("svg", { class: "flow", role: "img",
    viewBox: `${-wide} -8 ${FLOW_W + 2 * wide} ${FLOW_H + 16}`,
    "aria-label": `Before and after: ${words}; ${stay} stayed.` });
  const outs = left.map(({ y }) => y), ins = right.map(({ y }) => y);
  names.forEach((_, a) => names.forEach((_, b) => {
    const n = counts[a][b] * unit;
    if (!n) return;
    picture.append(band(outs[a], ins[b], n, a === b));
    outs[a] += n;
    ins[b] += n;
  }));
  names.forEach((name, k) => {
    for (const [node, place, at] of [[left[k], 0, -10], [right[k], FLOW_W - NODE, FLOW_W + 10]])
      if (node.h) picture.append(
        svg("rect", { class: "node", x: place, y: node.y, width: NODE, height: node.h }),
        text(at, node.y + node.h / 2, `${name} ${node.n}`, place ? "flowname end" : "flowname"));
  });
  const most = changes.slice(0, 2).map(([n, a, b]) => `${n} from ${a} to ${b}`);
  return el("figure", { class: "flowbox" }, el("figcaption", {},
    `${[...most, `${stay} of ${sum(counts.flat())} stayed`].join(", ")}.`), picture);
}

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

function starts(sizes, unit, gap) {
  let y = 0;
  return sizes.map((n) => {
    const at = { y, n, h: n * unit };
    y += n * unit + gap;
    return at;
  });
}

function band(y0, y1, h, same) {
  const x0 = NODE, x1 = FLOW_W - NODE, m = FLOW_W / 2;
  return svg("path", { class: same ? "stay" : "change", d: `M${x0},${y0}C${m},${y0} ${m},${y1} `
    + `${x1},${y1}V${y1 + h}C${m},${y1 + h} ${m},${y0 + h} ${x0},${y0 + h}Z` });
}
