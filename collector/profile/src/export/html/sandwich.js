"use strict";
/* One function between its callers and its callees: each as a flame graph and as a table. */

class Sandwich {
  constructor(page) {
    this.page = page;
    const flame = (canvas, grows) => {
      const it = new Flame(canvas, page, { grows: () => grows, zooms: to => { it.zoomed = to; it.draw(); } });
      return it;
    };
    // Callers stand above, so that their innermost touches the function.
    this.above = flame(element("callers-flame"), true);
    this.below = flame(element("callees-flame"), false);
  }

  show(tree) {
    const { page } = this, area = element("butterfly");
    const heaviest = () => tree.flat().sort((a, b) => b.self - a.self).map(row => row.function.id)[0];
    const id = page.state.function >= 0 ? page.state.function : heaviest();
    area.hidden = id === undefined;
    if (id === undefined) return;
    this.function = id;
    const it = page.model.functions[id];
    const { callers, callees } = tree.butterfly(id);
    this.list("callers", callers, arc => arc.from);
    this.list("callees", callees, arc => arc.to);
    const middle = element("middle");
    middle.replaceChildren();
    const heading = page.add("h2", undefined, middle);
    page.add("i", undefined, heading, "swatch").style.background = page.functionColour(id);
    heading.append(it.shown);
    page.add("p", `total ${page.amount(tree.inherited[id])}, self ${page.amount(tree.self[id])}`, middle);
    if (tree.after) {
      page.add("p", `total: ${page.changeText(tree.after.inherited[id], tree.before.inherited[id])}`, middle);
      page.add("p", `self: ${page.changeText(tree.after.self[id], tree.before.self[id])}`, middle);
    }
    page.add("p", it.module + (it.file ? "  " + it.file + (it.line ? ":" + it.line : "") : ""), middle, "faint");
    const actions = page.add("p", undefined, middle, "actions");
    const action = (text, go) => { const button = page.add("button", text, actions); button.type = "button"; button.addEventListener("click", go); };
    if (page.source.has(id)) action("source", () => page.go({ view: "source", function: id }));
    action("focus", () => page.also("focus", Pattern.of(it.name)));
    action("hide", () => page.also("hide", Pattern.of(it.name)));
    action("search", () => page.go({ view: "flame", search: Pattern.of(it.name) }));
    this.above.show(tree.callersOf(id));
    this.below.show(tree.calleesOf(id));
    this.draw();
  }

  draw() {
    this.above.draw();
    this.below.draw();
    // The innermost callers are the lowest.
    const part = element("callers-flame").parentElement;
    part.scrollTop = part.scrollHeight;
  }

  list(which, arcs, other) {
    const { page } = this, { tree } = page;
    element(which + "-head").textContent = which === "callers" ? `called by (${arcs.length})` : `calls (${arcs.length})`;
    const columns = [
      { head: "total", kind: "weight", key: row => row.weight, className: "amount" },
      { head: "total %", kind: "share", key: row => row.weight / tree.total, barred: !tree.after },
    ];
    if (tree.after) columns.push({ head: "change", kind: "change", key: row => page.change(row.after, row.before) });
    columns.push({ head: which === "callers" ? "caller" : "callee", kind: "name", key: row => row.function.shown });
    const rows = arcs.map(arc => ({ ...arc, function: page.model.functions[other(arc)] }));
    new Rows(page, element(which), columns).show(rows, { choose: id => page.choose(id) });
  }
}
