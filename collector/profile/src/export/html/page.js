"use strict";
/* The page: what is asked for, which view is shown. Its state is in the address behind #, so that a view can be linked to. */

const element = id => document.getElementById(id);

class Page {
  constructor(data) {
    this.data = data;
    this.model = new Model(data);
    this.state = { view: "flame", search: "", hide: "", focus: "", ignore: "", function: -1, sort: "self", up: false, startup: false };
    this.shown = 500;
    const dark = window.matchMedia && window.matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.classList.toggle("dark", dark);
    this.flame = new Flame(element("flame"), element("tip"), this);
    this.graph = new Graph(element("graph"), this);
    const times = data.timeline && new Times(data.timeline, this.model.count);
    this.timeline = times && new Timeline(times, this);
    element("facts").textContent = data.facts;
    for (const remark of data.remarks) this.add("li", remark, element("remarks"));
    this.listen();
    this.read();
    this.ask();
    this.names();
  }

  add(name, text, parent, className) {
    const it = document.createElement(name);
    if (text !== undefined) it.textContent = text;
    if (className) it.className = className;
    parent.append(it);
    return it;
  }

  /* Suggestions: the heaviest functions, and the images. */
  names() {
    const rows = this.tree.flat().sort((a, b) => b.inherited - a.inherited).slice(0, 300);
    const images = new Set(rows.map(row => row.function.image));
    for (const value of [...rows.map(row => row.function.name), ...Array.from(images, it => "module:" + it)]) {
      this.add("option", undefined, element("names")).value = value;
    }
  }

  listen() {
    let waiting = 0;
    for (const id of ["search", "hide", "focus", "ignore"]) {
      element(id).addEventListener("input", event => {
        this.state[id] = event.target.value.trim();
        clearTimeout(waiting);
        waiting = setTimeout(() => { this.write(); id === "search" ? this.find() : this.ask(); }, 60);
      });
    }
    element("question").addEventListener("submit", event => event.preventDefault());
    element("reset").addEventListener("click", () => this.reset());
    for (const tab of document.querySelectorAll("nav [data-view]")) tab.addEventListener("click", () => this.open(tab.dataset.view));
    element("turn").addEventListener("click", () => this.turn());
    element("startup").hidden = !this.data.startup.length;
    element("startup").addEventListener("click", () => this.startup());
    element("theme").addEventListener("click", () => this.theme());
    element("most").addEventListener("input", () => this.draw());
    element("more").addEventListener("click", () => { this.shown = Infinity; this.draw(); });
    for (const head of document.querySelectorAll("#table [data-column]")) {
      head.addEventListener("click", () => {
        const column = head.dataset.column;
        this.state.up = this.state.sort === column ? !this.state.up : column === "name" || column === "image";
        this.state.sort = column;
        this.write();
        this.draw();
      });
    }
    window.addEventListener("hashchange", () => { if (location.hash !== this.hash) { this.read(); this.ask(); } });
    document.addEventListener("keydown", event => this.key(event));
  }

  key(event) {
    if (event.key === "Escape") return this.reset();
    if (event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey) return;
    const views = ["flame", "table", "butterfly", "graph", "hot", ...(this.timeline ? ["time"] : [])];
    const chosen = this.flame.selected >= 0 && this.state.view === "flame" ? this.tree.ids[this.flame.selected] : this.state.function;
    const name = chosen >= 0 ? this.model.functions[chosen].name : "";
    if (event.key === "/") { event.preventDefault(); element("search").focus(); }
    else if (views[event.key - 1]) this.open(views[event.key - 1]);
    else if (event.key === "t") this.theme();
    else if (event.key === "i") this.turn();
    else if (event.key === "s" && this.data.startup.length) this.startup();
    else if (event.key === "h" && name) this.also("hide", name);
    else if (event.key === "f" && name) this.also("focus", name);
  }

  also(kind, name) {
    this.state[kind] = this.state[kind] && kind === "hide" ? this.state[kind] + " ;; " + name : name;
    this.write();
    this.fill();
    this.ask();
  }

  reset() {
    Object.assign(this.state, { search: "", hide: "", focus: "", ignore: "" });
    if (this.timeline) this.timeline.range = null;
    this.write();
    this.fill();
    this.ask();
  }

  turn() {
    this.flame.flame = !this.flame.flame;
    element("turn").textContent = this.flame.flame ? "flame" : "icicle";
    this.flame.draw();
  }

  /* Shows or folds the functions that only start the program or its threads. */
  startup() {
    this.state.startup = !this.state.startup;
    this.write();
    this.fill();
    this.ask();
  }

  theme() {
    document.documentElement.classList.toggle("dark");
    this.draw();
  }

  isDark() {
    return document.documentElement.classList.contains("dark");
  }

  /* The address behind #: key=value, separated by &. */
  write() {
    const parts = [];
    for (const key of ["view", "search", "hide", "focus", "ignore", "sort"]) {
      if (this.state[key]) parts.push(key + "=" + encodeURIComponent(this.state[key]));
    }
    if (this.state.up) parts.push("up=1");
    if (this.state.startup) parts.push("startup=1");
    if (this.timeline && this.timeline.text) parts.push("time=" + this.timeline.text);
    if (this.state.function >= 0) parts.push("function=" + this.state.function);
    this.hash = "#" + parts.join("&");
    history.replaceState(null, "", this.hash);
  }

  read() {
    this.hash = location.hash;
    const given = new URLSearchParams(location.hash.slice(1));
    for (const key of ["search", "hide", "focus", "ignore"]) this.state[key] = given.get(key) || "";
    const tab = document.querySelector(`nav [data-view="${CSS.escape(given.get("view") || "")}"]`);
    this.state.view = tab && !tab.hidden ? tab.dataset.view : "flame";
    if (this.timeline) this.timeline.text = given.get("time") || "";
    const sort = given.get("sort") === "total" ? "inherited" : given.get("sort");
    this.state.sort = ["self", "inherited", "name", "image"].includes(sort) ? sort : "self";
    this.state.up = given.get("up") === "1";
    this.state.startup = given.get("startup") === "1";
    const chosen = Number(given.get("function") ?? -1);
    this.state.function = Number.isInteger(chosen) && chosen >= 0 && chosen < this.model.functions.length ? chosen : -1;
    if (given.get("theme") === "dark" || given.get("theme") === "light") {
      document.documentElement.classList.toggle("dark", given.get("theme") === "dark");
    }
    this.fill();
  }

  fill() {
    for (const key of ["search", "hide", "focus", "ignore"]) element(key).value = this.state[key];
    element("startup").setAttribute("aria-pressed", this.state.startup);
    element("startup").textContent = this.state.startup ? "fold start-up" : "show start-up";
  }

  /* A new question: everything anew. Several patterns are separated by ";;", which no name has. */
  ask() {
    const patterns = text => text.split(";;").map(it => it.trim()).filter(Boolean);
    const begun = performance.now();
    const { hide, focus, ignore, startup } = this.state;
    if (this.timeline) this.model.weights = this.timeline.weights(this.data.weights);
    this.tree = this.model.ask({ hide: patterns(hide), focus: patterns(focus), ignore: patterns(ignore), startup });
    for (const id of ["hide", "focus", "ignore"]) {
      element(id).classList.toggle("wrong", patterns(this.state[id]).some(it => this.tree.unmatched.includes(it)));
    }
    if (this.timeline) this.timeline.show(this.tree);
    this.flame.show(this.tree);
    this.say();
    this.find();
    document.documentElement.dataset.total = this.tree.total;
    document.documentElement.dataset.milliseconds = (performance.now() - begun).toFixed(1);
  }

  find() {
    const found = this.state.search ? new Set(this.model.matching(this.state.search)) : new Set();
    element("search").classList.toggle("wrong", !!this.state.search && !found.size);
    this.found = found;
    this.draw();
  }

  isFound(it) {
    return this.found.has(it.id);
  }

  /* The expensive arm, in words, above everything else. */
  say() {
    const answer = element("answer");
    answer.replaceChildren();
    const { tree } = this;
    if (tree.unmatched.length) this.add("span", "nothing is called " + tree.unmatched.join(", ") + ". ", answer);
    if (!tree.total) return void this.add("span", "No samples are left.", answer);
    const path = tree.hotPath();
    const steps = path.filter((node, i) => i === path.length - 1 || tree.weight[path[i + 1]] < 0.9 * tree.weight[node]).slice(0, 4);
    this.add("span", "Most expensive: ", answer);
    for (const node of steps) {
      const it = tree.model.functions[tree.ids[node]];
      const button = this.add("button", it.name, answer);
      button.type = "button";
      button.addEventListener("click", () => { this.open("flame"); this.flame.zoomed = -1; this.flame.zoom({ node }); });
      this.add("span", ` ${percent(tree.weight[node], tree.total)}${node === steps[steps.length - 1] ? "" : " → "}`, answer);
    }
    this.add("span", `; the function that runs most itself: `, answer);
    const most = tree.flat().sort((a, b) => b.self - a.self)[0];
    const button = this.add("button", most.function.name, answer);
    button.type = "button";
    button.addEventListener("click", () => this.choose(most.function.id));
    this.add("span", ` ${percent(most.self, tree.total)}.`, answer);
    const left = tree.outside ? ` Of ${this.amount(tree.total + tree.outside, true)}, ${this.amount(tree.total, true)} are shown.` : "";
    this.add("span", left, answer);
  }

  told(text) {
    element("flame").setAttribute("aria-label", text);
  }

  /* A weight in a unit that can be read, with its share. */
  amount(weight, bare) {
    let text;
    if (this.data.unit === "nanoseconds") {
      text = weight >= 1e9 ? (weight / 1e9).toFixed(3) + " s" : weight >= 1e6 ? (weight / 1e6).toFixed(2) + " ms" : (weight / 1e3).toFixed(1) + " us";
    } else {
      text = Math.round(weight).toLocaleString("en") + " " + this.data.unit;
    }
    return bare ? text : `${text} (${percent(weight, this.tree.total)})`;
  }

  choose(id) {
    this.state.function = id;
    this.open("butterfly");
  }

  open(view) {
    this.state.view = view;
    this.write();
    this.draw();
  }

  draw() {
    if (!this.found) return;
    for (const tab of document.querySelectorAll("nav [data-view]")) {
      tab.setAttribute("aria-selected", tab.dataset.view === this.state.view);
    }
    for (const section of document.querySelectorAll("main section")) section.hidden = section.dataset.view !== this.state.view;
    ({
      flame: () => this.flame.draw(),
      table: () => this.table(),
      butterfly: () => this.butterfly(),
      graph: () => this.graph.show(this.tree, Number(element("most").value)),
      hot: () => this.hot(),
      time: () => this.timeline.table(),
    })[this.state.view]();
  }

  row(body, it, self, inherited, unsure) {
    const { total } = this.tree;
    const row = this.add("tr", undefined, body);
    row.tabIndex = 0;
    row.classList.toggle("found", this.isFound(it));
    for (const weight of [self, inherited]) {
      this.add("td", weight == null ? "" : this.amount(weight, true), row, "number").dataset.weight = weight ?? "";
      const share = this.add("td", weight == null ? "" : percent(weight, total), row, "number share");
      if (weight != null) share.style.setProperty("--part", 100 * weight / total + "%");
    }
    this.add("td", it.image, row, "faint");
    this.add("td", (unsure ? "~" : "") + it.name, row).title = it.file ? it.file + (it.line ? ":" + it.line : "") : "";
    const choose = () => this.choose(it.id);
    row.addEventListener("click", choose);
    row.addEventListener("keydown", event => { if (event.key === "Enter") choose(); });
  }

  table() {
    const { sort, up, search } = this.state;
    const key = row => sort === "name" ? row.function.name : sort === "image" ? row.function.image : row[sort];
    const order = (a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : a.function.id - b.function.id) * (up ? 1 : -1);
    let rows = this.tree.flat().sort(order);
    if (search) rows = rows.filter(row => this.isFound(row.function));
    for (const head of document.querySelectorAll("#table [data-column]")) {
      if (head.dataset.column === sort) head.setAttribute("aria-sort", up ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    const body = document.createElement("tbody");
    for (const row of rows.slice(0, this.shown)) this.row(body, row.function, row.self, row.inherited);
    element("table").tBodies[0].replaceWith(body);
    element("more").hidden = rows.length <= this.shown;
    element("more").textContent = `show all ${rows.length} functions`;
  }

  butterfly() {
    const area = element("butterfly");
    area.replaceChildren();
    const { tree } = this;
    const id = this.state.function >= 0 ? this.state.function
      : tree.flat().sort((a, b) => b.self - a.self).map(row => row.function.id)[0];
    if (id === undefined) return;
    const it = this.model.functions[id];
    const { callers, callees } = tree.butterfly(id);
    const list = (title, arcs, other) => {
      this.add("h2", `${title} (${arcs.length})`, area);
      const body = document.createElement("tbody");
      for (const arc of arcs) this.row(body, this.model.functions[other(arc)], null, arc.weight, arc.unsure);
      this.add("table", undefined, area).append(body);
    };
    list("called by", callers, arc => arc.from);
    const middle = this.add("div", undefined, area, "middle");
    this.add("strong", it.name, middle);
    this.add("div", `${this.amount(tree.inherited[id])} in all, ${this.amount(tree.self[id])} of it itself`, middle);
    this.add("div", it.image + (it.file ? "  " + it.file + (it.line ? ":" + it.line : "") : ""), middle, "faint");
    list("calls", callees, arc => arc.to);
  }

  hot() {
    const list = element("hot");
    list.replaceChildren();
    for (const node of this.tree.hotPath()) {
      const it = this.model.functions[this.tree.ids[node]];
      const line = this.add("li", undefined, list);
      this.add("span", this.flame.label(node), line);
      this.add("span", `  ${this.amount(this.tree.weight[node])}, ${this.amount(this.tree.own[node])} of it itself`, line, "faint");
      line.addEventListener("click", () => this.choose(it.id));
    }
  }
}

new Page(JSON.parse(element("data").textContent));
document.documentElement.dataset.ready = "1";
