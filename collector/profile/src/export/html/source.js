"use strict";
/* Source with what its lines cost: in themselves, and with what was called from them. In a difference, a function has the lines of
 * both profiles: in one list if both are of the same program, else one after the other. */

class SourceView {
  constructor(page, sources) {
    this.page = page;
    this.sources = new Map();
    for (const it of sources) {
      if (!this.sources.has(it.function)) this.sources.set(it.function, []);
      this.sources.get(it.function).push(...it.files.map(file => ({ ...file, layer: it.layer, same: it.same })));
    }
    const tab = document.querySelector('#tabs [data-view="source"]');
    tab.hidden = !this.sources.size;
    element("source-of").addEventListener("change", event => page.go({ function: Number(event.target.value) }));
  }

  has(id) {
    return this.sources.has(id);
  }

  /* Whether the text of any of its lines is here, and not only what they cost. */
  hasText(id) {
    return this.sources.get(id).some(file => file.lines.some(([, , , text]) => text !== null));
  }

  /* Whether it is the program's own code, and not a library's. */
  isOwn(id) {
    const { palette } = this.page, it = palette.packages[palette.packageOf(id)];
    return !it || it.kind === "own";
  }

  /* What the lines of a function cost in all, as a share of the whole profile: of the one where that is more. */
  share(id) {
    const sums = this.wholes.map(() => 0);
    for (const { lines, layer } of this.sources.get(id)) for (const [, self] of lines) sums[layer] += self;
    return Math.max(...sums.map((sum, layer) => (this.wholes[layer] ? sum / this.wholes[layer] : 0)));
  }

  /* The files of a function for the page: { path, remarks, layers, lines: [number, text, total and self of each layer] }. */
  files(id) {
    const files = this.sources.get(id), isDifference = this.page.model.isDifference;
    const listed = [];
    for (const { path, remarks, lines, layer, same } of files) {
      let file = same && listed.find(it => it.path === path);
      if (!file) listed.push(file = { path, remarks, layers: !isDifference ? [0] : same ? [1, 0] : [layer], lines: new Map() });
      for (const [number, self, inherited, text] of lines) {
        if (!file.lines.has(number)) file.lines.set(number, { number, text, total: [0, 0], self: [0, 0] });
        const line = file.lines.get(number);
        line.text ??= text;
        line.total[layer] = inherited;
        line.self[layer] = self;
      }
    }
    return listed.map(file => ({ ...file, lines: Array.from(file.lines.values()).sort((a, b) => a.number - b.number) }));
  }

  show(tree) {
    const { page } = this, area = element("source"), choice = element("source-of");
    area.replaceChildren();
    choice.replaceChildren();
    // Weights of lines are of the first metric; in a difference of both profiles.
    this.wholes = page.model.whole.map(weights => weights.reduce((sum, it) => sum + it, 0));
    const ids = Array.from(this.sources.keys()).sort((a, b) => this.hasText(b) - this.hasText(a) || this.isOwn(b) - this.isOwn(a) || this.share(b) - this.share(a));
    const wanted = page.state.function, id = this.has(wanted) ? wanted : wanted >= 0 ? -1 : ids[0];
    for (const it of ids) {
      const option = page.add("option", `${percent(this.share(it), 1)} self  ${page.model.functions[it].shown}${this.hasText(it) ? "" : " (lines only)"}`, choice);
      option.value = it;
      option.selected = it === id;
    }
    if (id < 0) {
      choice.selectedIndex = -1;
      page.add("p", `No source of ${page.model.functions[wanted].shown} is in this page: its lines are not known, its file was not there, or others are hotter.`, area);
      return;
    }
    const it = page.model.functions[id];
    const heading = page.add("h2", undefined, area);
    page.add("i", undefined, heading, "swatch").style.background = page.functionColour(id);
    heading.append(it.shown);
    const link = page.add("button", "callers and callees", page.add("p", undefined, area, "actions"));
    link.type = "button";
    link.addEventListener("click", () => page.choose(id));
    const notes = [];
    if (tree.isAsked) notes.push("costs of lines are those of all stacks, threads and times");
    if (tree.shownLayer && !page.model.isDifference) notes.push(`costs of lines are of ${page.model.layers[0].name}`);
    if (notes.length) page.add("p", notes.join("; "), area, "note");
    for (const file of this.files(id)) this.file(area, file);
  }

  file(area, { path, remarks, layers, lines }) {
    const { page } = this, { isDifference } = page.model, sides = isDifference ? [" after", " before"] : [""];
    page.add("h3", path + (isDifference && layers.length < 2 ? `, ${page.model.layers[layers[0]].name}` : ""), area);
    for (const remark of remarks) page.add("p", remark, area, "note");
    if (lines.every(line => line.text === null)) return this.bare(area, layers, lines);
    const table = page.add("table", undefined, page.add("div", undefined, area, "sheet"), "code" + (layers.length > 1 ? " both" : ""));
    table.parentElement.tabIndex = 0;
    table.parentElement.setAttribute("role", "region");
    table.parentElement.setAttribute("aria-label", path);
    const columns = ["total", "self"].flatMap(kind => layers.map(layer => ({ kind, layer })));
    const group = page.add("colgroup", undefined, table);
    for (const { kind } of columns) page.add("col", undefined, group, "of-" + kind);
    page.add("col", undefined, group, "of-line");
    const head = page.add("tr", undefined, page.add("thead", undefined, table));
    for (const { kind, layer } of columns) page.add("th", `${kind}${sides[layer]} %`, head, "number").scope = "col";
    page.add("th", "line", head, "number").scope = "col";
    page.add("th", "source", head).scope = "col";
    const body = page.add("tbody", undefined, table), share = (weights, layer) => (this.wholes[layer] ? weights[layer] / this.wholes[layer] : 0);
    const heat = line => Math.max(...layers.map(layer => share(line.total, layer)));
    const most = lines.reduce((most, line) => Math.max(most, heat(line)), 0);
    let last = 0;
    for (const line of lines) {
      const { number, text } = line;
      if (last && number > last + 1 && text !== null) this.gap(body, columns.length);
      last = number;
      const row = page.add("tr", undefined, body, heat(line) ? "costs" : "");
      if (heat(line)) row.style.setProperty("--heat", Math.round(100 * heat(line) / most) + "%");
      for (const { kind, layer } of columns) {
        const weight = line[kind][layer], part = share(line[kind], layer), was = layers.length > 1 && layer === 0 ? share(line[kind], 1) : part;
        const cell = page.add("td", weight ? (100 * part).toFixed(2) : "", row, "number" + (part > was ? " more" : part < was ? " less" : ""));
        cell.dataset[layer ? kind + "Before" : kind] = weight;
      }
      page.add("td", String(number), row, "number faint").dataset.line = number;
      page.add("code", text ?? "", page.add("td", undefined, row));
    }
  }

  /* Lines between that cost nothing and are not shown. */
  gap(body, columns) {
    const row = this.page.add("tr", undefined, body, "gap");
    for (let i = 0; i < columns; i++) this.page.add("td", undefined, row);
    this.page.add("td", "⋯", row, "number");
    this.page.add("td", undefined, row);
  }

  /* Lines of a file that is not here: the most expensive, in columns. */
  bare(area, layers, lines) {
    const { page } = this, isBoth = layers.length > 1, list = page.add("ul", undefined, area, isBoth ? "bare both" : "bare");
    const sides = isBoth ? [" after", " before"] : [""], columns = ["total", "self"].flatMap(kind => layers.map(layer => ({ kind, layer })));
    const row = (texts, className) => { const it = page.add("li", undefined, list, className); for (const text of texts) page.add("span", text, it); return it; };
    row(["line", ...columns.map(({ kind, layer }) => `${kind}${sides[layer]} %`)], "head");
    const share = (line, { kind, layer }) => line[kind][layer] / (this.wholes[layer] || 1), cost = line => Math.max(...layers.map(layer => share(line, { kind: "total", layer })));
    const heaviest = lines.slice().sort((a, b) => cost(b) - cost(a)).slice(0, BARE_LINES);
    for (const line of heaviest) {
      const it = row([line.number, ...columns.map(column => (share(line, column) ? (100 * share(line, column)).toFixed(2) : ""))]);
      it.dataset.line = line.number;
      for (const { kind, layer } of columns) it.dataset[layer ? kind + "Before" : kind] = line[kind][layer];
    }
    if (lines.length > heaviest.length) page.add("p", `${lines.length - heaviest.length} lines that cost less are not listed`, area, "note");
  }
}

/* Lines without text that are listed. */
const BARE_LINES = 60;
