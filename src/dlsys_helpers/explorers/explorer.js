// One front end for every explorer: native form controls, SVG curves and bars, canvas heat maps.
// Python computes, this file draws. The host is anywidget's model (a kernel answers) or a plain
// object with get("spec"), get("params") and get("frames") (every frame is in the page).

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const name in attributes) node.setAttribute(name, attributes[name]);
  node.append(...children);
  return node;
}
const el = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

// anywidget loads a copy of this module per widget, so a counter would repeat itself.
const uniqueId = () => "xp" + Math.random().toString(36).slice(2);

// ---- frames: the format written by _packing.py ----------------------------------------------
async function gunzip(base64) {
  const zipped = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const plain = new Blob([zipped]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(plain).arrayBuffer();
}

function asBytes(buffer) {
  if (!ArrayBuffer.isView(buffer)) return new Uint8Array(buffer);
  return new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength);
}

// The bytes of a number lie apart, grouped by place; bring them together again.
function readArray(bytes, [offset, shape, itemsize]) {
  const count = shape.reduce((a, b) => a * b, 1);
  const raw = new Uint8Array(count * itemsize);
  for (let place = 0; place < itemsize; place++)
    for (let i = 0; i < count; i++)
      raw[i * itemsize + place] = bytes[offset + place * count + i];
  return { data: itemsize === 1 ? raw : new Float32Array(raw.buffer), shape };
}

// Bytes -> a function from a frame's key to { sentence, arrays }, or undefined for no such frame.
function unpack(buffer) {
  const bytes = asBytes(buffer);
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const body = bytes.subarray(4 + length);
  const read = header.arrays.map(() => null);
  const array = (i) => (read[i] ??= readArray(body, header.arrays[i]));
  return (key) => {
    const frame = header.frames[key];
    if (!frame) return undefined;
    const [places, sentence] = frame;
    const arrays = Object.entries(places).map(([name, i]) => [name, array(i)]);
    return { sentence, arrays: Object.fromEntries(arrays) };
  };
}

// ---- numbers and scales ---------------------------------------------------------------------
const withMinus = (text) => text.replaceAll("-", "\u2212");

function format(value) {
  const size = Math.abs(value);
  const small = size !== 0 && size < 1e-3;
  if (small || size >= 1e5) return withMinus(value.toExponential(1).replace(".0e", "e"));
  return withMinus(String(+value.toPrecision(4)));
}

function extent(arrays) {
  let [low, high] = [Infinity, -Infinity];
  for (const array of arrays)
    for (const v of array) {
      if (v < low) low = v;
      if (v > high) high = v;
    }
  return [low, high];
}

// Limits with some air; a flat curve gets a range of its own.
function padded([low, high], log) {
  if (log) {
    const air = low === high ? 2 : (high / low) ** 0.05;
    return [low / air, high * air];
  }
  const air = low === high ? 1 : (high - low) * 0.05;
  return [low - air, high + air];
}

function linearTicks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 2.5, 5, 10].find((m) => m * power >= raw * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++)
    ticks.push(i * step);
  return ticks.length < 2 ? linearTicks(low, high, 2 * count) : ticks; // one tells no scale
}

function logTicks(low, high, count) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const within = (v) => v >= low * 0.999 && v <= high * 1.001;
  const decades = Array.from({ length: last - first + 1 }, (_, i) => 10 ** (first + i));
  const powers = decades.filter(within);
  const finer = decades.flatMap((p) => [p, 2 * p, 5 * p]).filter(within);
  if (finer.length < 2) return linearTicks(low, high, count);
  if (powers.length < 2) return finer;
  const every = Math.ceil(powers.length / count);
  return powers.filter((_, i) => i % every === 0);
}

// A function from a value to a pixel, with its ticks.
function scale([low, high], [start, end], log) {
  const place = log ? Math.log10 : (v) => v;
  const [a, b] = [place(low), place(high)];
  const pixel = (v) => start + ((place(v) - a) / (b - a)) * (end - start);
  pixel.ticks = (count) => (log ? logTicks : linearTicks)(low, high, count);
  return pixel;
}

// The scale of a matrix's rows or columns: without limits cell i is centred on i. Where a cell is one
// unit wide, only whole numbers are labelled.
function cells(count, span, limits = [-0.5, count - 0.5]) {
  const pixel = scale(limits, span);
  if (limits[1] - limits[0] !== count) return pixel;
  const all = pixel.ticks;
  const whole = (wanted) => all(wanted).filter(Number.isInteger);
  pixel.ticks = (wanted) => (whole(wanted).length > 1 ? whole(wanted) : whole(2 * wanted));
  return pixel;
}

// The scale of columns: the one at x takes the place from x - 1/2 to x + 1/2.
function slots(xs, span) {
  const pixel = scale([xs[0] - 0.5, xs[xs.length - 1] + 0.5], span);
  const every = Math.ceil(22 / (pixel(1) - pixel(0)));
  pixel.ticks = () => [...xs].filter((_, i) => i % every === 0);
  return pixel;
}

// Limits for columns: zero is where they stand.
function fromZero([low, high]) {
  const air = 0.05 * (Math.max(high, 0) - Math.min(low, 0)) || 1;
  return [low < 0 ? low - air : 0, high > 0 || low >= 0 ? Math.max(high, 0) + air : 0];
}

// ---- axes -----------------------------------------------------------------------------------
// A box is where the data goes inside the figure: { left, right, top, bottom } in pixels.
function xAxis(box, X, label) {
  const group = svg("g", { class: "xp-x" });
  for (const v of X.ticks((box.right - box.left) / 60))
    group.append(svg("text", { x: X(v), y: box.bottom + 18 }, format(v)));
  group.append(axisLabel(box, label));
  return group;
}

// Under the middle of the axis, as long as it is not cut off; on a phone it may have to be smaller.
function axisLabel(box, label) {
  const width = box.right + 10; // of the figure, whose least margin this is
  const size = Math.min(12, (1.9 * width) / label.length);
  const half = 0.26 * size * label.length;
  const x = Math.max(half, Math.min((box.left + box.right) / 2, width - half));
  const text = svg("text", { x, y: box.bottom + 36, class: "xp-label" }, label);
  text.style.fontSize = size + "px";
  return text;
}

const yTicks = (box, Y) => Y.ticks((box.bottom - box.top) / 36);

// Room to the left of the box: the widest number and the turned label.
const gutter = (box, Y) =>
  34 + 7 * Math.max(...yTicks(box, Y).map((v) => format(v).length));

function yAxis(box, Y, label) {
  const group = svg("g", { class: "xp-y" });
  for (const v of yTicks(box, Y))
    group.append(svg("text", { x: box.left - 8, y: Y(v) }, format(v)));
  const turned = `translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)`;
  const text = svg("text", { transform: turned, class: "xp-label" }, label);
  text.style.fontSize = Math.min(12, (1.9 * (box.bottom - box.top + 16)) / label.length) + "px";
  group.append(text);
  return group;
}

function gridLines(box, Y) {
  const lines = yTicks(box, Y).map((v) =>
    svg("line", { x1: box.left, x2: box.right, y1: Y(v), y2: Y(v) }));
  return svg("g", { class: "xp-grid" }, ...lines);
}

function resize(root, width, height) {
  root.setAttribute("viewBox", `0 0 ${width} ${height}`);
  root.style.height = height + "px";
}

// A small box that follows the pointer. The sentence is what a screen reader hears.
function tipIn(host) {
  const tip = el("div", { class: "xp-tip", "aria-hidden": "true", hidden: "" });
  host.append(tip);
  return {
    hide: () => (tip.hidden = true),
    show(text, x, width) {
      tip.textContent = text;
      tip.hidden = false;
      tip.style.left = Math.max(0, Math.min(x + 10, width - tip.offsetWidth)) + "px";
    },
  };
}

// Keeps curves inside fixed limits; the id is the figure's own.
function clip(box, id) {
  const window = svg("rect", {
    x: box.left, y: box.top - 2, width: Math.max(0, box.right - box.left), height: box.bottom - box.top + 4 });
  return svg("clipPath", { id }, window);
}

// ---- grips: a point in a drawing that moves controls, as their sliders and buttons do ----------
// A grip is a control with the places of its values; the place next to the pointer is chosen. The
// control gets the focus, so that arrow keys go on from there.
function gripsIn(view, root, hand) {
  if (!view.grips.length) return () => [];
  let drawn; // the last drawing's box and scales
  let held = false;
  root.classList.add("xp-grips");

  // The pixel of a grip's place in a direction, or undefined if it does not matter there.
  function pixel(grip, axis, i) {
    const { box, X, Y } = drawn;
    if (!grip?.[axis]) return undefined;
    const v = grip[axis][i];
    if (!grip.share) return axis === "x" ? X(v) : Y(v);
    const [start, end] = axis === "x" ? [box.left, box.right] : [box.top, box.bottom];
    return start + v * (end - start);
  }
  function follow(event) {
    const { left, top } = root.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    for (const grip of view.grips) {
      const far = (grip.x ?? grip.y).map((_, i) =>
        Math.hypot((pixel(grip, "x", i) ?? x) - x, (pixel(grip, "y", i) ?? y) - y));
      hand.move(grip.control, far.indexOf(Math.min(...far)));
    }
  }
  root.addEventListener("mousedown", (event) => event.preventDefault()); // keep focus, select nothing
  root.addEventListener("pointerdown", (event) => {
    // A finger beside the knob wants to scroll the page.
    if (event.button || (event.pointerType === "touch" && !event.target.closest(".xp-knob"))) return;
    held = true;
    root.setPointerCapture(event.pointerId);
    hand.focus(view.grips[0].control);
    follow(event);
  });
  root.addEventListener("pointermove", (event) => held && follow(event));
  for (const end of ["pointerup", "pointercancel"]) root.addEventListener(end, () => (held = false));
  root.addEventListener("click", follow); // a tap

  const dot = (x, y, r, name) => svg("circle", { cx: x, cy: y, r, class: name });
  return function knob(X, Y, box) {
    drawn = { X, Y, box };
    const stands = (axis) => {
      const grip = view.grips.find((one) => one[axis]);
      return pixel(grip, axis, grip && hand.at(grip.control));
    };
    const [x, y] = [stands("x") ?? box.left, stands("y") ?? box.bottom];
    const spots = view.grips.filter((grip) => grip.x && grip.y).flatMap((grip) =>
      grip.x.map((_, i) => dot(pixel(grip, "x", i), pixel(grip, "y", i), 5, "xp-spot")));
    return [...spots, svg("g", { class: "xp-knob" }, dot(x, y, 18, "xp-reach"),
      dot(x, y, 7, "xp-ball"))];
  };
}

// ---- views: lines and columns ----------------------------------------------------------------
function curve(xs, ys, X, Y, step) {
  let path = "";
  for (let i = 0; i < xs.length; i++) {
    const [x, y] = [X(xs[i]).toFixed(1), Y(ys[i]).toFixed(1)];
    path += i === 0 ? `M${x} ${y}` : step ? `H${x}V${y}` : `L${x} ${y}`;
  }
  return path;
}

// Columns from zero, the nth of `count` side by side at each x.
function columnPath(xs, ys, X, Y, n, count) {
  const zero = Y(0).toFixed(1);
  let path = "";
  for (let i = 0; i < xs.length; i++) {
    const [left, right] = [n, n + 1].map((k) => X(xs[i] - 0.4 + (0.8 * k) / count).toFixed(1));
    path += `M${left} ${zero}V${Y(ys[i]).toFixed(1)}`;
    if (ys[i]) path += `H${right}V${zero}Z`; // of 0 not even an outline
  }
  return path;
}

// Heights for labels that want to stand at `wanted`, at least `gap` apart, within the box.
function spread(wanted, gap, box) {
  const order = wanted.map((_, i) => i).sort((a, b) => wanted[a] - wanted[b]);
  const placed = [...wanted];
  let lowest = box.top + gap / 2;
  for (const i of order) lowest = (placed[i] = Math.max(placed[i], lowest)) + gap;
  let highest = box.bottom - gap / 2;
  for (const i of order.reverse()) highest = (placed[i] = Math.min(placed[i], highest)) - gap;
  return placed;
}

// Where labels do not stand at the curves: a piece of each column or line, and its label.
function lineKey(labels, columns = 0) {
  const entries = labels.map((label, i) => {
    const line = i < columns ? svg("path", { d: "M7 1H19V11H7Z", class: `xp-columns xp-s${i}` })
      : svg("path", { d: "M0 6H26", class: `xp-line xp-s${i}` });
    return el("span", {}, svg("svg", { viewBox: "0 0 26 12", class: "xp-dash" }, line), label);
  });
  return el("div", { class: "xp-groups", "aria-hidden": "true" }, ...entries);
}

// A label at the end of each curve: no legend to look up, no colour to match.
function endLabels(labels, curves, Y, box) {
  const ends = spread(curves.map((ys) => Y(ys[ys.length - 1])), 16, box);
  const texts = labels.map((label, i) =>
    svg("text", { x: box.right + 8, y: ends[i], class: `xp-s${i}` }, label));
  return svg("g", { class: "xp-ends" }, ...texts);
}

function nearest(xs, X, pixel) {
  let best = 0;
  for (let i = 1; i < xs.length; i++)
    if (Math.abs(X(xs[i]) - pixel) < Math.abs(X(xs[best]) - pixel)) best = i;
  return best;
}

// A line upwards at the place that the setting reads off.
function rule(view, frame, box, X) {
  if (!view.mark) return [];
  const x = X(frame.arrays[view.mark].data[0]);
  return [svg("line", { x1: x, x2: x, y1: box.top, y2: box.bottom, class: "xp-rule" })];
}

// What only columns have: a shaded range, the line of zero, and levels across.
function behind(view, frame, box, X, Y) {
  const across = (y, name) => svg("line", { x1: box.left, x2: box.right, y1: y, y2: y, class: name });
  const marks = [across(Y(0), "xp-zero")];
  if (view.band) {
    const [from, to] = [...frame.arrays[view.band].data].map(X);
    const place = { x: from, y: box.top, width: to - from, height: box.bottom - box.top };
    marks.unshift(svg("rect", { ...place, class: "xp-band" }));
  }
  const curves = Object.keys(view.ys).length;
  return [...marks, ...Object.keys(view.levels).map((name, i) =>
    across(Y(frame.arrays[name].data[0]), `xp-level xp-s${curves + i}`))];
}

const BESIDE = 0.25; // labels stand beside the curves while they take no more of the width

function linesView(view, host, hand) {
  const root = svg("svg", { role: "img", "aria-label": view.title });
  const columns = view.kind === "columns";
  const names = Object.keys(view.ys);
  const labels = [...Object.values(view.ys), ...Object.values(view.levels ?? {})];
  const key = lineKey(labels, columns ? names.length : 0);
  host.append(root, key);
  const tip = tipIn(host);
  const room = Math.max(...labels.map((l) => l.length)) * 8 + 10;
  const clipId = uniqueId();
  const knobs = gripsIn(view, root, hand);
  let shown; // what the pointer reads: the last drawing's scales and data

  function yLimits(frame, curves) {
    const levels = Object.keys(view.levels ?? {}).map((name) => frame.arrays[name].data);
    const span = extent([...curves, ...levels]);
    return view.ylim ?? (columns ? fromZero(span) : padded(span, view.ylog));
  }

  function draw(frame) {
    const width = host.clientWidth;
    const height = Math.max(190, Math.min(260, width * 0.56));
    const beside = !columns && labels.length > 1 && room < width * BESIDE;
    const box = { top: 8, bottom: height - 44, right: width - (beside ? room : 14) };
    const xs = frame.arrays[view.x].data;
    const curves = names.map((name) => frame.arrays[name].data);
    const Y = scale(yLimits(frame, curves), [box.bottom, box.top], view.ylog);
    box.left = gutter(box, Y);
    const span = [box.left, box.right];
    const X = columns ? slots(xs, span) : scale(view.xlim ?? extent([xs]), span, view.xlog);
    const paths = curves.map((ys, i) => columns
      ? svg("path", { d: columnPath(xs, ys, X, Y, i, names.length), class: `xp-columns xp-s${i}` })
      : svg("path", { d: curve(xs, ys, X, Y, view.step), class: `xp-line xp-s${i}` }));
    const drawn = svg("g", { "clip-path": `url(#${clipId})` }, ...paths);
    const ends = beside ? [endLabels(labels, curves, Y, box)] : [];
    key.hidden = beside || labels.length === 1;
    const cursor = svg("line", { class: "xp-cursor", y1: box.top, y2: box.bottom });
    resize(root, width, height);
    root.replaceChildren(clip(box, clipId), gridLines(box, Y), xAxis(box, X, view.xlabel),
      yAxis(box, Y, view.ylabel), ...(columns ? behind(view, frame, box, X, Y) : []), drawn,
      ...rule(view, frame, box, X), ...ends, cursor, ...knobs(X, Y, box));
    shown = { X, xs, curves, cursor, width };
  }

  root.addEventListener("pointermove", (event) => {
    if (!shown) return;
    const { X, xs, curves, cursor, width } = shown;
    const i = nearest(xs, X, event.clientX - root.getBoundingClientRect().left);
    const x = X(xs[i]);
    cursor.setAttribute("transform", `translate(${x} 0)`);
    cursor.classList.add("xp-on");
    const values = curves.map((ys, k) => `${labels[k]} ${format(ys[i])}`);
    tip.show(`${view.xlabel} ${format(xs[i])}: ${values.join(", ")}`, x, width);
  });
  root.addEventListener("pointerleave", () => {
    tip.hide();
    shown?.cursor.classList.remove("xp-on");
  });
  return draw;
}

// ---- view: heatmap --------------------------------------------------------------------------
const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

// 256 colours as 32-bit words in the canvas's byte order.
function palette(ramp) {
  const bytes = new Uint8ClampedArray(256 * 4);
  const stops = ramp.map(channels);
  for (let level = 0; level < 256; level++) {
    const at = (level / 255) * (stops.length - 1);
    const k = Math.min(stops.length - 2, Math.floor(at));
    for (let c = 0; c < 3; c++)
      bytes[level * 4 + c] = stops[k][c] + (at - k) * (stops[k + 1][c] - stops[k][c]);
    bytes[level * 4 + 3] = 255;
  }
  return new Uint32Array(bytes.buffer);
}

function paint(canvas, { data, shape: [rows, columns] }, colours, upwards) {
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let row = 0; row < rows; row++) {
    const from = (upwards ? rows - 1 - row : row) * columns;
    for (let column = 0; column < columns; column++)
      pixels[row * columns + column] = colours[data[from + column]];
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// Two shapes, so that a group is known without its colour.
const MARKS = [
  (x, y) => `M${x - 3.5} ${y}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z`,
  (x, y) => `M${x} ${y - 4.5}l4.3 7.6h-8.6z`,
];
const round = (v) => Math.round(v * 10) / 10;

function pointMarks(points, arrays, X, Y) {
  const [xs, ys, groups] = [points.x, points.y, points.group].map((name) => arrays[name].data);
  const paths = ["", ""];
  for (let i = 0; i < xs.length; i++)
    paths[groups[i]] += MARKS[groups[i]](round(X(xs[i])), round(Y(ys[i])));
  return paths.map((d, group) =>
    svg("path", { d, class: "xp-point", fill: points.colours[group] }));
}

// Each line stands on a broader one in the card's colour: readable on every colour of the map.
function wayMarks(ways, arrays, X, Y) {
  const last = arrays[ways.at].data[0];
  const marks = Object.values(ways.paths).map(([x, y], i) => {
    const [xs, ys] = [arrays[x].data, arrays[y].data];
    const places = [];
    for (let k = 0; k <= last; k++) places.push([round(X(xs[k])), round(Y(ys[k]))]);
    const d = "M" + places.map((place) => place.join(" ")).join("L");
    const disc = (place, r, name) => svg("circle", { cx: place[0], cy: place[1], r, class: name });
    return [svg("path", { d, class: "xp-casing" }), disc(places[0], 5, "xp-begin"),
      svg("path", { d, class: `xp-line xp-way xp-s${i}` }), disc(places[last], 4.5, `xp-end xp-s${i}`)];
  });
  return [0, 1, 2, 3].flatMap((layer) => marks.map((parts) => parts[layer]));
}

// An inner svg cuts off what lies outside of it; the sheet's rules are for outer ones.
function inside(box, marks) {
  const [width, height] = [box.right - box.left, box.bottom - box.top];
  const viewBox = `${box.left} ${box.top} ${width} ${height}`;
  const place = { x: box.left, y: box.top, width, height, viewBox };
  const inner = svg("svg", place, ...marks);
  Object.assign(inner.style, { width: width + "px", height: height + "px", overflow: "hidden" });
  return inner;
}

function pointKey(points) {
  const entries = points.labels.map((label, group) => {
    const fill = points.colours[group];
    const mark = svg("path", { d: MARKS[group](6, 6), class: "xp-point", fill });
    return el("span", {}, svg("svg", { viewBox: "0 0 12 12", class: "xp-mark" }, mark), label);
  });
  return el("div", { class: "xp-groups", "aria-hidden": "true" }, ...entries);
}

// The limits of x and y: the view's own, or those that this frame brings.
function limits(view, frame) {
  if (!view.frame) return [view.xlim ?? undefined, view.ylim ?? undefined];
  const [left, right, bottom, top] = frame.arrays[view.frame].data;
  return [[left, right], [bottom, top]];
}

function colourKey(view) {
  const bar = el("div", { class: "xp-ramp", "aria-hidden": "true" });
  bar.style.background = `linear-gradient(90deg, ${view.ramp.join(",")})`;
  return el("div", { class: "xp-key" },
    format(view.vmin), bar, format(view.vmax), el("span", {}, view.label));
}

function heatmapView(view, host, hand) {
  const canvas = el("canvas", { class: "xp-heat", "aria-hidden": "true" });
  const root = svg("svg", { role: "img", "aria-label": view.title });
  const colours = palette(view.ramp);
  host.append(el("div", { class: "xp-plot" }, canvas, root), colourKey(view));
  if (view.points) host.append(pointKey(view.points));
  if (view.ways) host.append(lineKey(Object.keys(view.ways.paths)));
  const knobs = gripsIn(view, root, hand);

  return function draw(frame) {
    const matrix = frame.arrays[view.z];
    const [rows, columns] = matrix.shape;
    const width = host.clientWidth;
    const left = 60;
    const side = width - left - 10;
    const [xlim, ylim] = limits(view, frame);
    const tall = xlim ? side : Math.min(side * 1.5, (side * rows) / columns);
    const box = { left, right: left + side, top: 8, bottom: 8 + tall };
    const X = cells(columns, [box.left, box.right], xlim);
    const Y = cells(rows, ylim ? [box.bottom, box.top] : [box.top, box.bottom], ylim);
    Object.assign(canvas.style, {
      left: box.left + "px", top: box.top + "px", width: side + "px", height: tall + "px" });
    paint(canvas, matrix, colours, Boolean(ylim));
    const marks = [...(view.points ? pointMarks(view.points, frame.arrays, X, Y) : []),
      ...(view.ways ? wayMarks(view.ways, frame.arrays, X, Y) : [])];
    resize(root, width, box.bottom + 44);
    root.replaceChildren(xAxis(box, X, view.xlabel), yAxis(box, Y, view.ylabel),
      inside(box, marks), ...knobs(X, Y, box));
  };
}

// ---- view: bars -----------------------------------------------------------------------------
function barsView(view, host) {
  const root = svg("svg", { role: "img", "aria-label": view.title });
  host.append(root);
  return function draw(frame) {
    const width = host.clientWidth;
    const X = scale([0, view.limit], [0, width - 2]);
    resize(root, width, view.labels.length * 42);
    root.replaceChildren(...view.labels.map((label, i) => {
      const value = frame.arrays[view.values].data[i];
      const place = { x: 1, y: 20, height: 12, rx: 2 };
      return svg("g", { class: "xp-bar", transform: `translate(0 ${i * 42})` },
        svg("text", { x: 1, y: 13 }, label),
        svg("text", { x: width - 1, y: 13, class: "xp-value" }, format(value) + view.unit),
        svg("rect", { ...place, width: width - 2, class: "xp-track" }),
        svg("rect", { ...place, width: X(value), class: "xp-amount" }));
    }));
  };
}

// ---- view: graph ----------------------------------------------------------------------------
const BOX = { height: 56, level: 74 }; // pixels of a node, and from one row to the next
const STATES = ["blank", "known", "part", "whole"];

// A node's three lines: its label, its value and its gradient, each once it is known.
function nodeText(label, state, value, grad) {
  const waits = state === 2 ? " \u2026" : "";
  return [label, state >= 1 ? `= ${format(value)}` : "",
    state >= 2 ? `\u2202 ${format(grad)}${waits}` : ""];
}

function graphView(view, host) {
  const root = svg("svg", { role: "img", "aria-label": view.title });
  host.append(root);
  const columns = 1 + Math.max(...view.nodes.map((n) => n[1]));
  const rows = 1 + Math.max(...view.nodes.map((n) => n[2]));

  return function draw(frame) {
    const width = host.clientWidth;
    const across = Math.min(width / columns, 112);
    const size = Math.min(12, (across - 8) / 6); // eleven characters fit into the box
    const X = (column) => (width - columns * across) / 2 + (column + 0.5) * across;
    const Y = (row) => 2 + row * BOX.level;
    const [values, grads, states, active] = [view.value, view.grad, view.state, view.active]
      .map((name) => frame.arrays[name].data);
    const edges = view.edges.map(([from, to]) => {
      const [[, c0, r0], [, c1, r1]] = [view.nodes[from], view.nodes[to]];
      return svg("line", { x1: X(c0), y1: Y(r0) + BOX.height, x2: X(c1), y2: Y(r1), class: "xp-edge" });
    });
    const nodes = view.nodes.map(([label, column, row], i) => {
      const place = { x: 3 - across / 2, y: 0, width: across - 6, height: BOX.height, rx: 7 };
      const lines = nodeText(label, states[i], values[i], grads[i]).map((text, k) =>
        svg("text", { y: 15 + 17 * k, class: `xp-node-${k}`, style: `font-size: ${size}px` }, text));
      const at = active[i] ? " xp-on" : "";
      return svg("g", { class: `xp-node xp-${STATES[states[i]]}${at}`,
        transform: `translate(${X(column)} ${Y(row)})` }, svg("rect", place), ...lines);
    });
    resize(root, width, rows * BOX.level);
    root.replaceChildren(...edges, ...nodes);
  };
}

const VIEWS = {
  lines: linesView, columns: linesView, heatmap: heatmapView, bars: barsView, graph: graphView };

// ---- controls: each returns its node, a way to show position i, and one to take the keyboard -----
// JupyterLab takes the arrow keys unless the focused element itself says no.
const KEYS = { "data-lm-suppress-shortcuts": "true" };

function choice(spec, onMove) {
  const name = uniqueId();
  const inputs = spec.texts.map((_, i) =>
    el("input", { ...KEYS, type: "radio", name, id: `${name}-${i}`, value: i }));
  const pairs = inputs.flatMap((input, i) => {
    input.addEventListener("input", () => onMove(i));
    return [input, el("label", { for: input.id }, spec.texts[i])];
  });
  const row = el("div", { class: "xp-options" }, ...pairs);
  const node = el("fieldset", { class: "xp-choice" }, el("legend", {}, spec.label), row);
  const focus = () => inputs.find((input) => input.checked).focus({ preventScroll: true });
  const set = (i) => {
    inputs[i].checked = true;
    if (inputs.includes(document.activeElement)) focus(); // keys go on from the one that is chosen
  };
  return { node, set, focus };
}

function slider(spec, onMove) {
  const id = uniqueId();
  const last = spec.values.length - 1;
  const input = el("input", { ...KEYS, type: "range", id, min: 0, max: last, step: 1 });
  const value = el("span", { class: "xp-now", "aria-hidden": "true" });
  const set = (i) => {
    input.value = i;
    value.textContent = spec.texts[i];
    input.setAttribute("aria-valuetext", spec.texts[i]);
  };
  input.addEventListener("input", () => {
    set(+input.value);
    onMove(+input.value);
  });
  const label = el("label", { for: id }, spec.label);
  const stops = el("div", { class: "xp-stops", "aria-hidden": "true" }, ...spec.values.map(() => el("i")));
  const focus = () => input.focus({ preventScroll: true });
  return { node: el("div", { class: "xp-slider" }, label, value, input, stops), set, focus };
}

const CONTROLS = { choice, slider };

function known(table, kind) {
  if (!table[kind]) throw new Error(`explorer.js does not know ${kind}. Restart the kernel.`);
  return table[kind];
}

// ---- one explorer ---------------------------------------------------------------------------
const PATIENCE_MS = 8000;
const NO_ANSWER = "Waiting for the kernel. If no other cell is running, run this cell again.";

function build(spec, root, hand, onMove) {
  const sentence = el("p", { class: "xp-say", "aria-live": "polite" });
  const stage = el("div", { class: "xp-stage" });
  const draws = spec.views.map((view) => {
    const host = el("div", { class: "xp-canvas" });
    stage.append(el("figure", { class: `xp-view xp-${view.kind}` },
      el("figcaption", {}, view.title), host));
    return known(VIEWS, view.kind)(view, host, hand);
  });
  const controls = spec.controls.map((c, i) =>
    known(CONTROLS, c.kind)(c, (position) => onMove(i, position)));
  const panel = el("div", { class: "xp-controls" }, ...controls.map((c) => c.node));
  fill(root, { role: "group", "aria-label": spec.title }, []);
  root.classList.add("xp");
  root.replaceChildren(el("div", { class: "xp-title" }, spec.title), panel, stage, sentence);
  return { sentence, stage, panel, draws, controls };
}

// Where each control stands for a setting, and back.
const positions = (spec, params) => spec.controls.map((c) => c.values.indexOf(params[c.name]));
const setting = (spec, at) =>
  Object.fromEntries(spec.controls.map((c, i) => [c.name, c.values[at[i]]]));

// Each box that JupyterLab puts around an output may scroll, so nothing in it could stay in the
// notebook's sight.
const BOXES = ".jp-OutputArea-output, .jp-OutputArea-child, .jp-Cell-outputArea";
function standInNotebook(root) {
  for (let box = root.closest(BOXES); box; box = box.parentElement.closest(BOXES))
    box.classList.add("xp-around");
}

// What both hosts share: the parts, the positions, and how a frame is shown.
function panelFor(model, root, onMove) {
  const spec = model.get("spec");
  const at = positions(spec, model.get("params"));
  const moved = (i, position) => {
    at[i] = position;
    onMove();
  };
  // What a drawing may do with controls.
  const nth = (name) => spec.controls.findIndex((control) => control.name === name);
  const hand = {
    at: (name) => at[nth(name)],
    focus: (name) => parts.controls[nth(name)].focus(),
    move(name, position) {
      if (position === hand.at(name)) return;
      parts.controls[nth(name)].set(position);
      moved(nth(name), position);
    },
  };
  const parts = build(spec, root, hand, moved);
  let last;
  const place = () => parts.controls.forEach((c, i) => c.set(at[i]));
  // Hidden, it has no width to draw to; the watcher draws it once it is shown.
  const redraw = () =>
    last && parts.stage.clientWidth && parts.draws.forEach((draw) => draw(last));
  const show = (frame) => {
    if (!frame) return; // the answer to an older setting
    last = frame;
    redraw();
    parts.sentence.textContent = frame.sentence;
    root.dataset.drawn = performance.now();
  };
  place();
  // Controls that take too much of the screen must not stay there.
  const fit = () =>
    parts.panel.classList.toggle("xp-tall", parts.panel.offsetHeight > 0.4 * window.innerHeight);
  window.addEventListener("resize", fit);
  const watcher = new ResizeObserver(() => {
    standInNotebook(root);
    fit();
    redraw();
  });
  watcher.observe(parts.stage);
  // Paper shows what the screen hides, and no watcher is asked in between.
  window.addEventListener("beforeprint", redraw);
  const stop = () => {
    watcher.disconnect();
    window.removeEventListener("resize", fit);
    window.removeEventListener("beforeprint", redraw);
  };
  return { spec, at, parts, place, show, key: () => at.join(","), stop };
}

// A reader should see why nothing is drawn, and the console should keep the error.
function report(root, error) {
  root.append(el("p", { class: "xp-problem", role: "alert" }, error.message));
  throw error;
}

// Live: anywidget calls this for every view of a widget.
function render({ model, el: root }) {
  try {
    return live(model, root);
  } catch (error) {
    return report(root, error);
  }
}

function live(model, root) {
  let patience;
  const ask = () => {
    panel.parts.stage.setAttribute("aria-busy", "true");
    clearTimeout(patience);
    patience = setTimeout(() => (panel.parts.sentence.textContent = NO_ANSWER), PATIENCE_MS);
    model.set("params", setting(panel.spec, panel.at));
    model.save_changes();
  };
  const answer = () => {
    const frame = unpack(model.get("frame"))(panel.key());
    if (!frame) return;
    clearTimeout(patience);
    panel.parts.stage.removeAttribute("aria-busy");
    panel.show(frame);
  };
  // Another view of the same widget moved a control.
  const follow = () => {
    panel.at.splice(0, Infinity, ...positions(panel.spec, model.get("params")));
    panel.place();
  };
  const panel = panelFor(model, root, ask);
  model.on("change:params", follow);
  model.on("change:frame", answer);
  answer();
  return () => {
    clearTimeout(patience);
    panel.stop();
    model.off("change:params", follow);
    model.off("change:frame", answer);
  };
}

// Resolves once the reader is a screen away.
const near = (node) => new Promise((resolve) => {
  const watcher = new IntersectionObserver((seen) => {
    if (!seen.some((entry) => entry.isIntersecting)) return;
    watcher.disconnect();
    resolve();
  }, { rootMargin: "100%" });
  watcher.observe(node);
});

// The frames that lie in a script of their own, which puts them under the explorer's name.
const fetched = (src, name) => new Promise((resolve, reject) => {
  const script = el("script", { src });
  script.onload = () => resolve(window.dlsysFrames[name]);
  script.onerror = () => reject(new Error("The other settings could not be loaded. Reload the page."));
  document.head.append(script);
});

// On a page there is no kernel: every frame is in it, or the first one and an address of all.
async function mount(root) {
  const [json, packed] = root.querySelectorAll("script");
  const state = JSON.parse(json.textContent);
  let frame = unpack(await gunzip(packed.textContent));
  const look = () => panel.show(frame(panel.key()));
  const panel = panelFor({ get: (name) => state[name] }, root, look);
  look();
  if (!packed.dataset.rest) return;
  await near(root);
  frame = unpack(await gunzip(await fetched(packed.dataset.rest, root.dataset.explorer)));
  look();
}

const mountAll = () => document.querySelectorAll("[data-explorer]").forEach((root) =>
  mount(root).catch((error) => report(root, error)));

export { gunzip, unpack };
export default { render };
