"use strict";
/* Tables: one unit a column, bars as long as a row is heavy beside the heaviest one. */

function percent(part, whole) {
  return whole ? (100 * part / whole).toFixed(2) + "%" : "0%";
}

/* What weights up to `most` are shown in: [divisor, name, digits]. */
function unitFor(most, unit) {
  if (unit === "nanoseconds") return most >= 1e9 ? [1e9, "s", 3] : most >= 1e6 ? [1e6, "ms", 2] : [1e3, "us", 1];
  const [divisor, prefix] = most >= 1e10 ? [1e9, "G"] : most >= 1e7 ? [1e6, "M"] : most >= 1e5 ? [1e3, "k"] : [1, ""];
  return [divisor, prefix + (unit === "count" ? "" : (prefix && " ") + unit), divisor > 1 ? 2 : 0];
}

class Rows {
  /* `columns`: [{ head, kind: "weight" | "share" | "change" | "text" | "name" | "label", key, sort, className, barred, group, indent }]: what a
   * row has in it is `key(row)`; with a bar beside it if the column is `barred`; neighbours of one `group` have a common head. A row has a
   * function, whose number `choose` gets; else it gets the row. */
  constructor(page, table, columns) {
    this.page = page;
    this.table = table;
    this.columns = columns;
  }

  show(rows, { choose, most = Infinity }) {
    const { page, table, columns } = this, unit = page.unit, { sort, up } = page.state;
    table.replaceChildren();
    const shown = rows.slice(0, most);
    for (const column of columns) {
      if (Rows.isText(column)) continue;
      column.largest = rows.reduce((largest, row) => Math.max(largest, Math.abs(column.key(row) ?? 0)), 0);
      if (column.kind === "weight") column.unit = unitFor(column.largest, unit);
    }
    const group = page.add("colgroup", undefined, table);
    for (const column of columns) page.add("col", undefined, group, (column.className || "") + " of-" + column.kind + (column.barred ? " barred" : ""));
    const heads = page.add("thead", undefined, table);
    if (columns.some(it => it.group)) this.groups(heads);
    const head = page.add("tr", undefined, heads);
    for (const column of columns) {
      const isNumber = !Rows.isText(column);
      const cell = page.add("th", undefined, head, (isNumber ? "number " : "") + (column.kind === "change" ? "change " : column.barred ? "barred " : "") + (column.className || ""));
      cell.scope = "col";
      const text = column.head + (column.kind === "weight" && column.unit[1] ? " " + column.unit[1] : "");
      if (!column.sort) { cell.textContent = text; continue; }
      const button = page.add("button", undefined, cell);
      if (column.group) page.add("span", column.group.replace("%", ""), button, "wide-less");
      button.append(text);
      button.type = "button";
      if (column.said) button.setAttribute("aria-label", column.said);
      if (column.sort === sort) cell.setAttribute("aria-sort", up ? "ascending" : "descending");
      button.addEventListener("click", () => page.go({
        sort: column.sort, up: sort === column.sort ? !up : column.sort === "name" || column.sort === "image",
      }));
    }
    const body = page.add("tbody", undefined, table);
    for (const row of shown) this.row(body, row, choose);
    return shown.length;
  }

  /* Above the heads: what neighbours have in common. */
  groups(heads) {
    const { page, columns } = this, row = page.add("tr", undefined, heads, "groups");
    let last = null;
    for (const { group, className } of columns) {
      if (last && group && last.group === group) { last.cell.colSpan++; continue; }
      const cell = page.add(group ? "th" : "td", group, row, group ? "" : "gap " + (className || ""));
      if (group) cell.scope = "colgroup";
      last = { group, cell };
    }
  }

  static isText({ kind }) {
    return kind === "text" || kind === "name" || kind === "label";
  }

  row(body, row, choose) {
    const { page, columns } = this, it = row.function;
    const line = page.add("tr", undefined, body);
    line.tabIndex = 0;
    if (it) {
      line.dataset.function = it.id;
      line.classList.toggle("found", page.isFound(it.id));
    }
    for (const column of columns) {
      const value = column.key(row);
      if (column.kind === "name") {
        const cell = page.add("td", undefined, line, "name" + (row.unsure ? " unsure" : ""));
        const swatch = page.add("i", undefined, cell, "swatch");
        swatch.style.background = page.functionColour(it.id);
        if (column.indent) cell.style.setProperty("--depth", column.indent(row));
        cell.append(value);
        cell.title = (row.unsure ? "the call may be another: what is hidden or squeezed out is between\n" : "") + it.longName + (it.file ? "\n" + it.file + (it.line ? ":" + it.line : "") : "");
        continue;
      }
      if (column.kind === "text") { page.add("td", value, line, "faint " + (column.className || "")); continue; }
      if (column.kind === "label") { page.add("td", value, line, "name"); continue; }
      const [divisor, , digits] = column.unit || [];
      const text = value == null ? "" : column.kind === "weight" ? (value / divisor).toFixed(digits)
        : column.kind === "change" ? signed(value) : (100 * value).toFixed(2);
      const cell = page.add("td", text, line, "number " + column.kind + " " + (column.barred ? "barred " : "") + (column.className || ""));
      if (column.kind === "weight") cell.dataset.weight = value ?? "";
      if ((column.barred || column.kind === "change") && column.largest) cell.style.setProperty("--part", (Math.abs(value) / column.largest).toFixed(4));
      if (column.kind === "change") {
        cell.dataset.change = value;
        cell.classList.add(value > 0 ? "more" : value < 0 ? "less" : "same");
      }
    }
    const act = () => choose(it ? it.id : row);
    line.addEventListener("click", act);
    line.addEventListener("keydown", event => this.key(event, line, act));
  }

  key(event, line, choose) {
    const next = event.key === "ArrowDown" ? line.nextElementSibling : event.key === "ArrowUp" ? line.previousElementSibling : null;
    if (event.key === "Enter") choose();
    else if (next) { event.preventDefault(); next.focus(); }
  }
}

/* A share's change in points of percent. */
function signed(share) {
  const text = (100 * share).toFixed(2);
  return share > 0 && text !== "0.00" ? "+" + text : text === "-0.00" ? "0.00" : text;
}

/* The view of all functions. */
class Functions {
  constructor(page) {
    this.page = page;
    this.most = 500;
    element("more").addEventListener("click", () => { this.most = Infinity; this.show(page.tree); });
  }

  columns(tree) {
    const { page } = this, { sort } = page.state;
    const module = { head: "module", kind: "text", key: row => row.function.module, sort: "image", className: "module" };
    const name = { head: "function", kind: "name", key: row => row.function.shown, sort: "name" };
    // Bars belong to what orders the rows.
    const bars = which => sort === which || (which === "self" && sort !== "inherited");
    if (!tree.after) {
      return [
        { head: "self", kind: "weight", key: row => row.self, sort: "self", className: "amount" },
        { head: "self %", kind: "share", key: row => row.self / tree.total, sort: "self", barred: bars("self") },
        { head: "total", kind: "weight", key: row => row.inherited, sort: "inherited", className: "amount" },
        { head: "total %", kind: "share", key: row => row.inherited / tree.total, sort: "inherited", barred: bars("inherited") },
        module, name,
      ];
    }
    const { after, before } = tree;
    const sign = (set, id) => (tree.isAsked || page.model.significant[set + (page.state.absolute ? 2 : 0)].has(id) ? "" : "~");
    const side = (which, group, set) => [
      { head: "change", said: `${group} change`, group, kind: "change", key: row => page.change(after[which][row.function.id], before[which][row.function.id]), sort: which },
      { head: "~", group, kind: "text", key: row => sign(set, row.function.id), className: "chance" },
      { head: "before", group, kind: "share", key: row => page.shareOf(before[which][row.function.id], 1), className: "amount" },
      { head: "after", group, kind: "share", key: row => page.shareOf(after[which][row.function.id], 0), className: "amount" },
    ];
    return [...side("self", "self %", 0), ...side("inherited", "total %", 1), module, name];
  }

  /* What rows are ordered by. In a difference, weights are ordered by the size of their change. */
  key(tree, sort) {
    if (sort === "name") return row => row.function.shown;
    if (sort === "image") return row => row.function.module;
    if (!tree.after) return row => row[sort];
    return ({ function: { id } }) => Math.abs(this.page.change(tree.after[sort][id], tree.before[sort][id]));
  }

  show(tree) {
    const { page } = this, { sort, up, search } = page.state;
    const key = this.key(tree, sort);
    const order = (a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : a.function.id - b.function.id) * (up ? 1 : -1);
    let rows = tree.flat().sort(order);
    if (search && page.search.found.size) rows = rows.filter(row => page.isFound(row.function.id));
    const table = element("table");
    table.classList.toggle("difference", !!tree.after);
    const shown = new Rows(page, table, this.columns(tree)).show(rows, { choose: id => page.choose(id), most: this.most });
    element("chance").hidden = !tree.after || tree.isAsked;
    element("more").hidden = shown === rows.length;
    element("more").textContent = `show all ${rows.length} functions`;
  }
}

/* The heaviest functions beside the flame graph. A row searches for its function there. */
class Beside {
  constructor(page) {
    this.page = page;
  }

  show(tree) {
    const { page } = this, { sort, up } = page.state, key = page.functions.key(tree, sort);
    const change = side => row => page.change(tree.after[side][row.function.id], tree.before[side][row.function.id]);
    const weights = tree.after
      ? [{ head: "self", kind: "change", key: change("self"), sort: "self" }, { head: "total", kind: "change", key: change("inherited"), sort: "inherited" }]
      : [{ head: "self %", kind: "share", key: row => row.self / tree.total, sort: "self", barred: sort !== "inherited" }, { head: "total %", kind: "share", key: row => row.inherited / tree.total, sort: "inherited", barred: sort === "inherited" }];
    const columns = [...weights, { head: "function", kind: "name", key: row => row.function.shown, sort: "name" }];
    const order = (a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : a.function.id - b.function.id) * (up ? 1 : -1);
    const choose = id => {
      const pattern = Pattern.of(page.model.functions[id].name);
      page.go({ search: page.state.search === pattern ? "" : pattern });
    };
    new Rows(page, element("beside"), columns).show(tree.flat().sort(order), { choose, most: 300 });
  }
}
