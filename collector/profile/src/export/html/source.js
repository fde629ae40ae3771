"use strict";
/* Source with what its lines cost: in themselves, and with what was called from them. */

class SourceView {
  constructor(page, sources) {
    this.page = page;
    this.sources = new Map(sources.map(it => [it.function, it.files]));
    const tab = document.querySelector('nav [data-view="source"]');
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

  /* What the lines of a function cost in all, of the whole profile. */
  weight(id) {
    return this.sources.get(id).reduce((sum, file) => file.lines.reduce((sum, [, self]) => sum + self, sum), 0);
  }

  show(tree) {
    const { page } = this, area = element("source"), choice = element("source-of");
    area.replaceChildren();
    choice.replaceChildren();
    const ids = Array.from(this.sources.keys()).sort((a, b) => this.hasText(b) - this.hasText(a) || this.weight(b) - this.weight(a));
    const wanted = page.state.function, id = this.has(wanted) ? wanted : wanted >= 0 ? -1 : ids[0];
    // Weights of lines are of the first metric.
    const whole = page.model.whole[0].reduce((sum, it) => sum + it, 0);
    for (const it of ids) {
      const option = page.add("option", `${percent(this.weight(it), whole)} self  ${page.model.functions[it].name}${this.hasText(it) ? "" : " (lines only)"}`, choice);
      option.value = it;
      option.selected = it === id;
    }
    if (id < 0) {
      choice.selectedIndex = -1;
      page.add("p", `No source of ${page.model.functions[wanted].name} is in this page: its lines are not known, its file was not there, or others are hotter.`, area);
      return;
    }
    const it = page.model.functions[id];
    const heading = page.add("h2", undefined, area);
    page.add("i", undefined, heading, "swatch").style.background = page.functionColour(id);
    heading.append(it.name);
    const link = page.add("button", "callers and callees", page.add("p", undefined, area, "actions"));
    link.type = "button";
    link.addEventListener("click", () => page.choose(id));
    const notes = [];
    if (tree.isAsked) notes.push("costs of lines are those of all stacks, threads and times");
    if (tree.shownLayer) notes.push(`costs of lines are of ${page.model.layers[0].name}`);
    if (notes.length) page.add("p", notes.join("; "), area, "note");
    for (const file of this.sources.get(id)) this.file(area, file, whole);
  }

  file(area, { path, remarks, lines }, whole) {
    const { page } = this;
    page.add("h3", path, area);
    for (const remark of remarks) page.add("p", remark, area, "note");
    const table = page.add("table", undefined, area, "code");
    const head = page.add("tr", undefined, page.add("thead", undefined, table));
    for (const text of ["total %", "self %", "line"]) page.add("th", text, head, "number").scope = "col";
    page.add("th", "source", head).scope = "col";
    const body = page.add("tbody", undefined, table);
    const most = lines.reduce((most, [, , inherited]) => Math.max(most, inherited), 0);
    let last = 0;
    for (const [number, self, inherited, text] of lines) {
      if (last && number > last + 1 && text !== null) page.add("td", "⋯", page.add("tr", undefined, body, "gap")).colSpan = 4;
      last = number;
      const row = page.add("tr", undefined, body, inherited ? "costs" : "");
      if (inherited) row.style.setProperty("--heat", Math.round(100 * inherited / most) + "%");
      const cell = (weight, kind) => {
        const it = page.add("td", weight ? (100 * weight / whole).toFixed(2) : "", row, "number");
        it.dataset[kind] = weight;
      };
      cell(inherited, "total");
      cell(self, "self");
      page.add("td", String(number), row, "number faint").dataset.line = number;
      page.add("code", text ?? "", page.add("td", undefined, row));
    }
  }
}
