"use strict";
/* What was spent when: the costs of stacks in columns of time, and the timeline in which a part of it is chosen. */

/* The numbers. A cell is what was spent in exactly one stack in one column. */
class Times {
  constructor(data, nodes) {
    this.nodes = nodes;
    this.starts = data.starts;
    this.ends = data.ends;
    this.count = data.starts.length;
    const cells = data.steps.length;
    this.node = new Int32Array(cells);
    this.column = new Int32Array(cells);
    this.weight = new Float64Array(cells);
    let key = 0;
    for (let i = 0; i < cells; i++) {
      key += data.steps[i];
      this.node[i] = Math.floor(key / this.count);
      this.column[i] = key % this.count;
      this.weight[i] = data.weights[i] * data.unit;
    }
  }

  /* What was spent in exactly each stack in the columns from `first` up to `end`, without that one. */
  between(first, end) {
    const sums = new Float64Array(this.nodes), { node, column, weight } = this;
    for (let i = 0; i < node.length; i++) if (column[i] >= first && column[i] < end) sums[node[i]] += weight[i];
    return sums;
  }

  /* What these functions spent, and all together, in each column: of the stacks that a question leaves. At most 31 functions. */
  bands(tree, ids, inherited) {
    const bit = new Int32Array(tree.model.functions.length);
    ids.forEach((id, i) => { bit[id] |= 1 << i; });
    const mask = new Int32Array(tree.count);
    for (let node = 0; node < tree.count; node++) {
      mask[node] = bit[tree.ids[node]] | (inherited && tree.parents[node] >= 0 ? mask[tree.parents[node]] : 0);
    }
    const all = new Float64Array(this.count), bands = ids.map(() => new Float64Array(this.count));
    for (let i = 0; i < this.node.length; i++) {
      const node = this.node[i];
      if (tree.counts[node] !== 1) continue;
      const at = tree.place[node], column = this.column[i], weight = this.weight[i];
      all[column] += weight;
      const wanted = at < 0 ? bit[tree.model.rootFunction()] : mask[at];
      for (let rest = wanted; rest; rest &= rest - 1) bands[31 - Math.clz32(rest & -rest)][column] += weight;
    }
    return { all, bands };
  }

  /* A time as --since and --until take it, to the nanosecond. */
  option(ns) {
    return "+" + (ns / 1e9).toFixed(9).replace(/\.?0+$/, "") + "s";
  }
}

const BAND_COLOURS = ["#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#edc948", "#76b7b2"];
const OTHER_COLOUR = "#9aa0a6";

/* The strip above the views, with the heaviest functions stacked, and the view with a band for each. Dragging over either
 * chooses a time; so do the arrow keys. */
class Timeline {
  constructor(times, page) {
    this.times = times;
    this.page = page;
    this.range = null; // columns from [0] up to [1], without that one
    this.strip = element("strip");
    element("timeline").hidden = false;
    document.querySelector('nav [data-view="time"]').hidden = false;
    this.listen(this.strip);
    this.strip.addEventListener("keydown", event => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.strip.parentElement);
  }

  listen(canvas) {
    let from = null;
    const at = event => {
      const area = canvas.getBoundingClientRect();
      return this.columnAt((event.clientX - area.left) / area.width);
    };
    const span = to => [Math.min(from, to), Math.max(from, to) + 1];
    canvas.addEventListener("pointerdown", event => {
      if (event.button) return;
      from = at(event);
      // A pointer that only a script has cannot be captured.
      try { canvas.setPointerCapture(event.pointerId); } catch { /* then the drag ends at the edge */ }
    });
    canvas.addEventListener("pointermove", event => {
      if (from === null) return;
      this.marking = span(at(event));
      this.mark();
    });
    canvas.addEventListener("pointerup", event => {
      if (from === null) return;
      const chosen = span(at(event));
      // A click that moved nothing takes a choice back.
      const click = !this.marking && this.range;
      from = this.marking = null;
      this.choose(click ? null : chosen);
    });
    canvas.addEventListener("pointercancel", () => { from = this.marking = null; this.mark(); });
  }

  get span() {
    return this.times.ends[this.times.count - 1] - this.times.starts[0];
  }

  columnAt(part) {
    const { times } = this, ns = times.starts[0] + Math.min(Math.max(part, 0), 1) * this.span;
    const column = times.ends.findIndex(end => ns < end);
    return column < 0 ? times.count - 1 : column;
  }

  key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const { count } = this.times;
    let [first, end] = this.range || (move > 0 ? [-1, 0] : [count, count + 1]);
    if (event.shiftKey && this.range) end = Math.min(Math.max(end + move, first + 1), count);
    else if (first + move >= 0 && end + move <= count) { first += move; end += move; }
    this.choose([first, end]);
  }

  choose(range) {
    this.range = range && range[0] <= 0 && range[1] >= this.times.count ? null : range;
    this.page.write();
    this.page.ask();
  }

  /* Which stacks' costs count. */
  weights(all) {
    return this.range ? this.times.between(...this.range) : all;
  }

  /* The state in the address: first and last column. */
  get text() {
    return this.range ? this.range[0] + "-" + (this.range[1] - 1) : "";
  }

  set text(text) {
    const [, first, last] = (/^(\d+)-(\d+)$/.exec(text) || []).map(Number);
    this.range = first <= last && last < this.times.count ? [first, last + 1] : null;
  }

  /* A new question has been answered. */
  show(tree) {
    this.tree = tree;
    const rows = tree.flat().filter(row => row.self > 0).sort((a, b) => b.self - a.self).slice(0, BAND_COLOURS.length);
    this.top = rows.map(row => row.function);
    this.stacked = this.times.bands(tree, this.top.map(it => it.id), false);
    const legend = element("legend");
    legend.replaceChildren();
    this.top.forEach((it, i) => {
      const button = this.page.add("button", it.name.length > 40 ? it.name.slice(0, 39) + "…" : it.name, legend);
      button.type = "button";
      button.style.setProperty("--band", BAND_COLOURS[i]);
      button.addEventListener("click", () => this.page.choose(it.id));
    });
    if (tree.flat().some(row => row.self > 0 && !this.top.includes(row.function))) {
      this.page.add("span", "others", legend).style.setProperty("--band", OTHER_COLOUR);
    }
    const { times } = this, { starts, ends } = times;
    const longest = Math.max(...starts.map((start, i) => ends[i] - start));
    const [first, end] = this.range || [0, times.count];
    const since = times.option(starts[first]), until = times.option(ends[end - 1]);
    Object.assign(document.documentElement.dataset, { since, until });
    element("when").textContent = this.range
      ? `shown: ${(starts[first] / 1e9).toFixed(2)} s to ${(ends[end - 1] / 1e9).toFixed(2)} s, as by --since ${since} --until ${until}; click to see all`
      : `${(starts[0] / 1e9).toFixed(2)} s to ${(ends[times.count - 1] / 1e9).toFixed(2)} s in ${times.count} parts of at most ${(longest / 1e9).toFixed(2)} s; drag to see a part`;
    this.draw();
  }

  draw() {
    if (!this.stacked || element("timeline").hidden) return;
    const { all, bands } = this.stacked;
    this.paint(this.strip, [this.strip.parentElement.clientWidth, 56], bands.map((weights, i) => [BAND_COLOURS[i], weights]), all);
    this.mark();
  }

  /* Nanoseconds of a column. */
  length(column) {
    return Math.max(this.times.ends[column] - this.times.starts[column], 1);
  }

  /* One function's band: columns as high as they are heavy in their time, of at most `most` a nanosecond. */
  band(weights, ink, most) {
    const { times } = this, x = ns => ((ns - times.starts[0]) / this.span * 1000).toFixed(1);
    let path = "";
    weights.forEach((weight, column) => {
      if (!weight) return;
      // What is more than nothing is seen.
      const high = Math.max(weight / this.length(column) / most * 100, 3).toFixed(1);
      path += `M${x(times.starts[column])} 100v-${high}H${x(times.ends[column])}v${high}z`;
    });
    const svg = document.createElementNS(SVG, "svg"), shape = document.createElementNS(SVG, "path");
    svg.setAttribute("viewBox", "0 0 1000 100");
    svg.setAttribute("preserveAspectRatio", "none");
    shape.setAttribute("d", path);
    shape.setAttribute("fill", ink);
    svg.append(shape);
    svg.dataset.weights = Array.from(weights).join(" ");
    this.listen(svg);
    return svg;
  }

  /* Weights in columns, stacked, in so many pixels, as high as they are heavy in their time; what the bands leave of all in grey. */
  paint(canvas, [width, height], bands, all) {
    const ratio = window.devicePixelRatio || 1, { times } = this;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const most = all.reduce((most, weight, column) => Math.max(most, weight / this.length(column)), 0);
    if (!most) return;
    for (let column = 0; column < times.count; column++) {
      const left = (times.starts[column] - times.starts[0]) / this.span * width;
      const wide = Math.max((times.ends[column] - times.starts[0]) / this.span * width - left - 0.5, 0.5);
      const scale = height / (most * this.length(column));
      let base = height, rest = all[column];
      for (const [ink, weights] of bands) {
        const high = weights[column] * scale;
        pen.fillStyle = ink;
        pen.fillRect(left, base - high, wide, high);
        base -= high;
        rest -= weights[column];
      }
      pen.fillStyle = OTHER_COLOUR;
      if (rest > 0) pen.fillRect(left, base - rest * scale, wide, rest * scale);
    }
  }

  /* What is not chosen is veiled. */
  mark() {
    const range = this.marking || this.range, { times } = this;
    const part = ns => (ns - times.starts[0]) / this.span * 100 + "%";
    for (const area of document.querySelectorAll(".times")) {
      area.classList.toggle("chosen", !!range);
      if (!range) continue;
      area.style.setProperty("--from", part(times.starts[range[0]]));
      area.style.setProperty("--to", part(times.ends[range[1] - 1]));
    }
  }

  /* The view: a band for each of the heaviest functions. */
  table() {
    const inherited = this.page.state.sort === "inherited", key = inherited ? "inherited" : "self";
    const search = this.page.state.search, { tree } = this;
    let rows = tree.flat().filter(row => row[key] > 0 && (!search || this.page.isFound(row.function)));
    const left = rows.length;
    rows = rows.sort((a, b) => b[key] - a[key] || a.function.id - b.function.id).slice(0, 30);
    const { all, bands } = this.times.bands(tree, rows.map(row => row.function.id), inherited);
    const highest = list => list.reduce((most, weights) => weights.reduce((most, weight, i) => Math.max(most, weight / this.length(i)), most), 0);
    const most = highest(bands);
    const body = document.createElement("tbody");
    const line = (name, weight, weights, choose) => {
      const row = this.page.add("tr", undefined, body);
      row.tabIndex = 0;
      const cell = this.page.add("td", this.page.amount(weight, true), row, "number");
      cell.dataset.weight = weight;
      this.page.add("td", percent(weight, tree.total), row, "number");
      const area = this.page.add("div", undefined, this.page.add("td", undefined, row, "band"), "times");
      area.append(this.band(weights, weights === all ? OTHER_COLOUR : BAND_COLOURS[0], weights === all ? highest([all]) : most));
      const label = this.page.add("td", name, row);
      if (choose) {
        label.addEventListener("click", choose);
        row.addEventListener("keydown", event => { if (event.key === "Enter") choose(); });
      }
    };
    line("[all]", tree.total, all);
    rows.forEach((row, i) => line(row.function.name, row[key], bands[i], () => this.page.choose(row.function.id)));
    element("bands").tBodies[0].replaceWith(body);
    element("which").textContent = key;
    element("rest").textContent = left > rows.length ? `${left - rows.length} more functions; search finds them` : "";
    this.mark();
  }
}
