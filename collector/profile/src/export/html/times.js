"use strict";
/* What was spent when: the strip above the views, in which a part of the time is chosen, and a track for each of the heaviest
 * functions, threads or processes. */

/* A time as --since and --until take it, to the nanosecond. */
function timeOption(ns) {
  return "+" + (ns / 1e9).toFixed(9).replace(/\.?0+$/, "") + "s";
}

/* Pixels below the strip for its times. */
const AXIS = 16;
const ALL_TIME = ["#a9bccb", "#45515e"];

class Timeline {
  constructor(page) {
    this.page = page;
    this.cells = page.model.cells;
    this.marking = null; // columns under the pointer, while it is dragged
    this.strip = element("strip");
    this.known = this.cells.starts.length > 1;
    const hasTracks = this.known && page.model.threads.length > 1;
    element("timeline").hidden = !this.known;
    const tab = document.querySelector('#tabs [data-view="time"]');
    // Without times, threads are a table.
    tab.hidden = !this.known && page.model.threads.length < 2;
    if (!this.known) tab.textContent = "Threads";
    element("bands").hidden = !this.known;
    element("threads").hidden = this.known;
    for (const button of document.querySelectorAll("#tracks button")) {
      button.hidden = !hasTracks || (button.dataset.tracks === "process" && page.model.processes.length < 2);
      button.addEventListener("click", () => page.go({ tracks: button.dataset.tracks }));
    }
    element("tracks").hidden = !hasTracks;
    if (!this.known) return;
    this.listen(this.strip);
    this.strip.addEventListener("keydown", event => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.strip.parentElement);
  }

  /* Dragging chooses a time; a click that moves nothing takes a choice back. */
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
      const click = !this.marking && this.range;
      from = this.marking = null;
      this.choose(click ? null : chosen);
    });
    canvas.addEventListener("pointercancel", () => { from = this.marking = null; this.mark(); });
  }

  get span() {
    const { starts, ends } = this.cells;
    return ends[ends.length - 1] - starts[0];
  }

  columnAt(part) {
    const { starts, ends } = this.cells, ns = starts[0] + Math.min(Math.max(part, 0), 1) * this.span;
    const column = ends.findIndex(end => ns < end);
    return column < 0 ? ends.length - 1 : column;
  }

  key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const { columns } = this.cells;
    let [first, end] = this.range || (move > 0 ? [-1, 0] : [columns, columns + 1]);
    if (event.shiftKey && this.range) end = Math.min(Math.max(end + move, first + 1), columns);
    else if (first + move >= 0 && end + move <= columns) { first += move; end += move; }
    this.choose([first, end]);
  }

  choose(range) {
    const isAll = !range || (range[0] <= 0 && range[1] >= this.cells.columns);
    this.page.go({ time: isAll ? "" : range[0] + "-" + (range[1] - 1) });
  }

  /* The chosen columns, from [0] up to [1], without that one; null for all. */
  get range() {
    const [, first, last] = (/^(\d+)-(\d+)$/.exec(this.page.state.time) || []).map(Number);
    return this.known && first <= last && last < this.cells.columns && last - first + 1 < this.cells.columns ? [first, last + 1] : null;
  }

  /* What the stacks that a question leaves spent in each column: sums by what `number` says of a cell's function and thread. */
  sums(tree, count, number) {
    const { node, thread, column, layers, columns } = this.cells, weights = layers[tree.shownLayer];
    const sums = Array.from({ length: count }, () => new Float64Array(columns));
    for (let i = 0; i < node.length; i++) {
      if (!weights[i] || tree.counts[node[i]] !== 1 || (tree.threads && !tree.threads[thread[i]])) continue;
      const at = number(tree.ids[tree.place[node[i]]], thread[i]);
      if (at >= 0) sums[at][column[i]] += weights[i];
    }
    return sums;
  }

  /* What these functions spent in each column, with what they called if `inherited`. */
  bands(tree, ids, inherited) {
    const { node, thread, column, layers, columns } = this.cells, weights = layers[tree.shownLayer];
    const number = new Map(ids.map((id, i) => [id, i])), bands = ids.map(() => new Float64Array(columns));
    const all = new Float64Array(columns);
    // The places in `ids` of the functions above each node, each once.
    const lists = new Array(tree.count);
    for (let at = 0; at < tree.count; at++) {
      const above = inherited && tree.parents[at] >= 0 ? lists[tree.parents[at]] : [], own = number.get(tree.ids[at]);
      lists[at] = own === undefined || above.includes(own) ? above : [...above, own];
    }
    for (let i = 0; i < node.length; i++) {
      if (!weights[i] || tree.counts[node[i]] !== 1 || (tree.threads && !tree.threads[thread[i]])) continue;
      all[column[i]] += weights[i];
      for (const at of lists[tree.place[node[i]]]) bands[at][column[i]] += weights[i];
    }
    return { all, bands };
  }

  /* What a node spent in each column (-1: all of them), with its cells in the order of time. */
  spent(tree, zoomed) {
    const layer = tree.shownLayer, known = this.spending;
    if (known && known.tree === tree && known.layer === layer && known.zoomed === zoomed) return known;
    const { node, thread, column, layers, columns: count } = this.cells, weights = layers[layer];
    const inside = new Uint8Array(tree.count);
    for (let at = 0; at < tree.count; at++) inside[at] = zoomed < 0 || at === zoomed || (tree.parents[at] >= 0 && inside[tree.parents[at]]) ? 1 : 0;
    const [from, to] = this.range || [0, count];
    const counts = i => weights[i] && tree.counts[node[i]] === 1 && inside[tree.place[node[i]]] && column[i] >= from && column[i] < to
      && (!tree.threads || tree.threads[thread[i]]);
    // Sorted by counting: the cells of column n from begins[n] to begins[n + 1].
    const columns = new Float64Array(count), begins = new Int32Array(count + 2);
    for (let i = 0; i < node.length; i++) if (counts(i)) { columns[column[i]] += weights[i]; begins[column[i] + 2]++; }
    for (let at = 2; at < count + 2; at++) begins[at] += begins[at - 1];
    const cells = new Int32Array(begins[count + 1]);
    for (let i = 0; i < node.length; i++) if (counts(i)) cells[begins[column[i] + 1]++] = i;
    const total = columns.reduce((sum, it) => sum + it, 0);
    return this.spending = { tree, layer, zoomed, columns, begins, cells, total, weight: new Float64Array(tree.count) };
  }

  /* What each node spent in these columns. Holds until the next call. */
  weights(tree, spent, first, end) {
    const { weight, cells, begins } = spent, { node, layers } = this.cells, weights = layers[spent.layer];
    weight.fill(0);
    for (let at = begins[first]; at < begins[end]; at++) weight[tree.place[node[cells[at]]]] += weights[cells[at]];
    for (let at = tree.count - 1; at > 0; at--) if (weight[at] && tree.parents[at] >= 0) weight[tree.parents[at]] += weight[at];
    return weight;
  }

  /* A new question has been answered. */
  show(tree) {
    if (!this.known) return;
    this.tree = tree;
    const { palette } = this.page;
    this.hues = this.sums(tree, palette.hues.length + 1, id => palette.hueOf(id));
    this.all = this.hues.reduce((all, weights) => all.map((sum, i) => sum + weights[i]), new Float64Array(this.cells.columns));
    const { starts, ends, columns } = this.cells;
    const longest = Math.max(...starts.map((start, i) => ends[i] - start));
    const [first, end] = this.range || [0, columns];
    const since = timeOption(starts[first]), until = timeOption(ends[end - 1]);
    Object.assign(document.documentElement.dataset, { since, until });
    const seconds = ns => (ns / 1e9).toFixed(2);
    element("when-text").textContent = this.range
      ? `shown: ${seconds(starts[first])} s to ${seconds(ends[end - 1])} s, as by --since ${since} --until ${until}`
      : `in ${columns} parts of at most ${seconds(longest)} s; drag to see a part`;
    element("when").classList.toggle("chosen", !!this.range);
    element("all-times").hidden = !this.range;
    this.draw();
  }

  draw() {
    if (!this.hues || element("timeline").hidden) return;
    const { page, strip } = this, dark = page.isDark;
    const bands = this.hues.map((weights, i) => [page.palette.hueColour(i, dark), weights]);
    const high = document.documentElement.clientWidth < 600 ? 26 : 34;
    this.paint(strip, [strip.parentElement.clientWidth, high], bands);
    this.axis(strip, high);
    this.mark();
  }

  /* Nanoseconds of a column. */
  length(column) {
    return Math.max(this.cells.ends[column] - this.cells.starts[column], 1);
  }

  /* A track: columns as high as they are heavy in their time, of at most `most` a nanosecond; its parts stacked, each with its ink. */
  track(parts, most) {
    const { cells } = this, x = ns => ((ns - cells.starts[0]) / this.span * 1000).toFixed(1);
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 1000 100");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    const base = new Float64Array(cells.columns), sums = new Float64Array(cells.columns);
    for (const [ink, weights] of parts) {
      let path = "";
      weights.forEach((weight, column) => {
        if (!weight) return;
        // What is more than nothing is seen.
        const high = Math.max(weight / this.length(column) / most * 100, 3);
        path += `M${x(cells.starts[column])} ${(100 - base[column]).toFixed(1)}v-${high.toFixed(1)}H${x(cells.ends[column])}v${high.toFixed(1)}z`;
        base[column] += high;
        sums[column] += weight;
      });
      if (!path) continue;
      const shape = document.createElementNS(SVG, "path");
      shape.setAttribute("d", path);
      shape.setAttribute("fill", ink);
      svg.append(shape);
    }
    svg.dataset.weights = Array.from(sums).join(" ");
    this.listen(svg);
    return svg;
  }

  /* Weights in columns, stacked, in so many pixels, as high as they are heavy in their time. */
  paint(canvas, [width, height], bands) {
    const ratio = window.devicePixelRatio || 1, { cells } = this;
    canvas.width = width * ratio;
    canvas.height = (height + AXIS) * ratio;
    canvas.style.height = height + AXIS + "px";
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const most = this.all.reduce((most, weight, column) => Math.max(most, weight / this.length(column)), 0);
    if (!most) return;
    for (let column = 0; column < cells.columns; column++) {
      const left = (cells.starts[column] - cells.starts[0]) / this.span * width;
      const wide = Math.max((cells.ends[column] - cells.starts[0]) / this.span * width - left - 0.5, 0.5);
      const scale = height / (most * this.length(column));
      let base = height;
      for (const [ink, weights] of bands) {
        const high = weights[column] * scale;
        pen.fillStyle = ink;
        pen.fillRect(left, base - high, wide, high);
        base -= high;
      }
    }
  }

  /* Round times below what is painted. */
  axis(canvas, top, width = canvas.parentElement.clientWidth) {
    const pen = canvas.getContext("2d"), { starts } = this.cells, end = starts[0] + this.span;
    const style = getComputedStyle(document.documentElement), rough = this.span / Math.max(width / 90, 1);
    const power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find(it => it * power >= rough) * power;
    const digits = Math.max(Math.ceil(9 - Math.log10(step)), 0);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (let at = Math.ceil(starts[0] / step) * step; at <= end; at += step) {
      const x = (at - starts[0]) / this.span * width, text = (at / 1e9).toFixed(digits) + " s";
      pen.fillStyle = style.getPropertyValue("--line");
      pen.fillRect(x, 0, 1, top + 5);
      pen.fillStyle = style.getPropertyValue("--faint");
      if (x + pen.measureText(text).width + 6 < width) pen.fillText(text, x + 4, top + AXIS / 2 + 1);
    }
  }

  /* What is not chosen is veiled. */
  mark() {
    const range = this.marking || this.range, { cells } = this;
    const part = ns => (ns - cells.starts[0]) / this.span * 100 + "%";
    for (const area of document.querySelectorAll(".times")) {
      area.classList.toggle("chosen", !!range);
      if (!range) continue;
      area.style.setProperty("--from", part(cells.starts[range[0]]));
      area.style.setProperty("--to", part(cells.ends[range[1] - 1]));
    }
  }

  /* The view: a track for each of the heaviest. */
  table() {
    if (!this.known) return void this.withoutTime();
    const { page } = this, kind = element("tracks").hidden ? "function" : page.state.tracks;
    for (const button of document.querySelectorAll("#tracks button")) button.setAttribute("aria-pressed", button.dataset.tracks === kind);
    const body = document.createElement("tbody");
    element("bands").tBodies[0].replaceWith(body);
    if (kind === "function") this.functions(body); else this.threads(body, kind);
    const axis = element("axis");
    axis.width = axis.parentElement.clientWidth * (window.devicePixelRatio || 1);
    axis.height = 20 * (window.devicePixelRatio || 1);
    axis.style.height = "20px";
    axis.getContext("2d").scale(window.devicePixelRatio || 1, window.devicePixelRatio || 1);
    this.axis(axis, 2, axis.clientWidth);
    element("rest").textContent = this.left > 0 ? `${this.left} more ${kind === "process" ? "processes" : kind + "s"}${kind === "function" ? "; search finds them" : ""}` : "";
    this.mark();
  }

  /* What stands for no thread or process has no number. */
  static numbered(name, id) {
    return id ? `${name} (${id})` : name;
  }

  /* Threads, those of one name together in a difference: two runs have threads of their own. */
  withoutTime() {
    const { page } = this, { tree } = page, { model } = page, rows = new Map();
    const { node, thread, layers } = model.cells;
    for (let i = 0; i < node.length; i++) {
      if (tree.counts[node[i]] !== 1 || (tree.threads && !tree.threads[thread[i]])) continue;
      const it = model.threads[thread[i]], isOne = it.process.name === it.name, own = Timeline.numbered(it.name, it.tid);
      const name = tree.after ? (isOne ? it.name : `${it.name} of ${it.process.name}`) : isOne ? own : `${own} of ${it.process.name}`;
      if (!rows.has(name)) rows.set(name, { name, weights: model.layers.map(() => 0), pattern: "thread:" + (tree.after ? Pattern.of(it.name) : it.tid) });
      layers.forEach((weights, layer) => { rows.get(name).weights[layer] += weights[i]; });
    }
    const shown = tree.shownLayer, change = row => page.change(row.weights[0], row.weights[1]);
    const columns = tree.after
      ? [
        { head: "change", kind: "change", key: change },
        { head: "before %", kind: "share", key: row => page.shareOf(row.weights[1], 1) },
        { head: "after %", kind: "share", key: row => page.shareOf(row.weights[0], 0) },
      ]
      : [{ head: "total", kind: "weight", key: row => row.weights[shown], className: "amount" }, { head: "total %", kind: "share", key: row => row.weights[shown] / tree.total, barred: true }];
    const size = row => (tree.after ? Math.abs(change(row)) : row.weights[shown]);
    const list = Array.from(rows.values()).filter(row => row.weights.some(Boolean)).sort((a, b) => size(b) - size(a) || (a.name < b.name ? -1 : 1));
    const table = new Rows(page, element("threads"), [...columns, { head: "thread", kind: "label", key: row => row.name }]);
    table.show(list, { choose: row => page.also("focus", row.pattern), most: 500 });
    element("rest").textContent = list.length > 500 ? `${list.length - 500} more threads` : "";
  }

  line(body, [name, swatch], weight, parts, most, choose) {
    const { page } = this, row = page.add("tr", undefined, body);
    row.tabIndex = 0;
    row.dataset.name = name;
    const [divisor, , digits] = this.unit;
    page.add("td", (weight / divisor).toFixed(digits), row, "number weight amount").dataset.weight = weight;
    page.add("td", (this.tree.total ? 100 * weight / this.tree.total : 0).toFixed(2), row, "number");
    const label = page.add("td", undefined, row, "name");
    label.title = name;
    if (swatch) page.add("i", undefined, label, "swatch").style.background = swatch;
    label.append(name);
    const area = page.add("div", undefined, page.add("td", undefined, row, "band"), "times");
    area.append(this.track(parts, most));
    if (!choose) return;
    label.classList.add("link");
    label.addEventListener("click", choose);
    row.addEventListener("keydown", event => { if (event.key === "Enter") choose(); });
  }

  highest(list) {
    return list.reduce((most, weights) => weights.reduce((most, weight, i) => Math.max(most, weight / this.length(i)), most), 0);
  }

  heads(what) {
    this.unit = unitFor(this.tree.total, this.page.unit);
    element("which").textContent = `${what} ${this.unit[1]}`;
  }

  functions(body) {
    const { page, tree } = this, inherited = page.state.sort === "inherited", key = inherited ? "inherited" : "self";
    this.heads(inherited ? "total" : "self");
    let rows = tree.flat().filter(row => row[key] > 0 && (!page.search.found.size || page.isFound(row.function.id)));
    const left = rows.length;
    rows = rows.sort((a, b) => b[key] - a[key] || a.function.id - b.function.id).slice(0, 30);
    this.left = left - rows.length;
    const { all, bands } = this.bands(tree, rows.map(row => row.function.id), inherited);
    const most = this.highest(bands);
    this.line(body, ["[all]"], tree.total, [[ALL_TIME[page.isDark ? 1 : 0], all]], this.highest([all]));
    rows.forEach((row, i) => {
      const ink = page.functionColour(row.function.id);
      this.line(body, [row.function.shown, ink], row[key], [[ink, bands[i]]], most, () => page.choose(row.function.id));
    });
  }

  /* A track for each thread or process, with what it ran in the colours of the packages. */
  threads(body, kind) {
    const { page, tree } = this, { model, palette } = page, ofProcess = kind === "process";
    this.heads("total");
    const all = ofProcess ? model.processes : model.threads, number = thread => (ofProcess ? model.threads[thread].process.id : thread);
    const totals = this.sums(tree, all.length, (_, thread) => number(thread));
    const inRange = weights => { const [first, end] = this.range || [0, weights.length]; return weights.slice(first, end).reduce((sum, it) => sum + it, 0); };
    const ranked = all.map(it => ({ it, weights: totals[it.id], weight: inRange(totals[it.id]) })).filter(row => row.weight > 0).sort((a, b) => b.weight - a.weight);
    const rows = ranked.slice(0, 100), most = this.highest(rows.map(row => row.weights));
    this.left = ranked.length - rows.length;
    const place = new Int32Array(all.length).fill(-1), hues = palette.hues.length + 1;
    rows.forEach((row, i) => { place[row.it.id] = i; });
    const parts = this.sums(tree, rows.length * hues, (id, thread) => {
      const at = place[number(thread)];
      return at < 0 ? -1 : at * hues + palette.hueOf(id);
    });
    rows.forEach(({ it, weight }, i) => {
      const own = Array.from({ length: hues }, (_, hue) => [palette.hueColour(hue, page.isDark), parts[i * hues + hue]]);
      const numbered = Timeline.numbered(it.name, ofProcess ? it.pid : it.tid), of = ofProcess ? null : it.process;
      // A process is named where its threads have other names than it.
      const name = of && model.processes.length > 1 && of.name !== it.name ? `${numbered} of ${Timeline.numbered(of.name, of.pid)}` : numbered;
      const pattern = ofProcess ? `process:${it.pid}` : `thread:${it.tid}`;
      this.line(body, [name], weight, own, most, () => page.also("focus", pattern));
    });
  }
}
