"use strict";
/* The page: what is asked for, which view is shown, keys. */

const element = id => document.getElementById(id);

class Page {
  constructor(data) {
    this.data = data;
    this.model = new Model(data);
    this.palette = new Palette(this.model, data.palette);
    const { functions, layers, count } = this.model;
    this.address = new Address({
      view: view => { const tab = document.querySelector(`#tabs [data-view="${CSS.escape(view)}"]`); return !!tab && !tab.hidden; },
      sort: sort => ["self", "inherited", "name", "image"].includes(sort),
      order: order => this.orders.includes(order),
      tracks: tracks => ["function", "thread", "process"].includes(tracks),
      function: id => id < functions.length,
      metric: layer => layer < layers.length,
      zoom: node => node < count,
      group: group => group < this.palette.packages.length,
      part: part => !part || (([from, to]) => from >= 0 && from < to && to <= 1)(Page.part(part)),
    });
    this.state = this.address.state;
    this.tip = element("tip");
    this.darken(!!window.matchMedia && window.matchMedia("(prefers-color-scheme: dark)").matches);
    this.isTouched = !!window.matchMedia && window.matchMedia("(pointer: coarse)").matches;
    this.search = new Search(this);
    this.source = new SourceView(this, data.sources);
    this.timeline = new Timeline(this);
    this.functions = new Functions(this);
    this.sandwich = new Sandwich(this);
    this.graph = new Graph(element("graph"), this);
    this.flame = new Flame(element("flame"), this, {
      grows: () => this.state.flip,
      zooms: to => this.go({ zoom: to < 0 ? -1 : this.tree.origin[to], part: "" }),
      looks: (from, to) => this.look(from, to),
    });
    this.overview = new Overview(element("overview"), this.flame, this);
    this.beside = new Beside(this);
    element("facts").textContent = data.facts;
    this.add("li", data.facts, element("remarks"));
    for (const remark of data.remarks) this.add("li", remark, element("remarks"));
    this.metrics();
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

  /* Suggestions: the heaviest functions, the images, threads, and what processes belong to. */
  names() {
    const rows = this.tree.flat().sort((a, b) => b.inherited - a.inherited).slice(0, 300);
    const images = new Set(rows.map(row => row.function.image));
    const threads = this.model.threads.length > 1 ? new Set(this.model.threads.slice(0, 100).map(it => "thread:" + it.name)) : [];
    const groups = ["unit", "container", "user"].flatMap(kind => {
      const names = Array.from(new Set(this.model.groups.map(it => it[kind])));
      return names.length > 1 ? names.slice(0, 100).map(it => `${kind}:${it}`) : [];
    });
    if (groups.length) element("focus").placeholder = "stacks with … or unit:NAME";
    for (const value of [...rows.map(row => row.function.name), ...Array.from(images, it => "module:" + it), ...threads, ...groups]) {
      this.add("option", undefined, element("names")).value = value;
    }
  }

  /* The choice between metrics, or between the profiles before and after. */
  metrics() {
    const choice = element("metric"), { layers, isDifference } = this.model;
    element("metrics").hidden = layers.length < 2;
    element("metric-label").textContent = isDifference ? "widths of" : "metric";
    layers.forEach((layer, i) => { this.add("option", layer.name, choice).value = i; });
    choice.addEventListener("change", () => this.go({ metric: Number(choice.value) }));
    element("absolute").hidden = !isDifference;
  }

  listen() {
    for (const id of ["search", ...PATTERN_FIELDS]) {
      let waiting = 0, typed = false;
      const input = element(id);
      input.addEventListener("input", () => {
        clearTimeout(waiting);
        // All that is typed without leaving the field is one step.
        waiting = setTimeout(() => { this.go({ [id]: input.value.trim() }, typed); typed = true; }, 60);
      });
      input.addEventListener("blur", () => { typed = false; });
    }
    element("question").addEventListener("submit", event => event.preventDefault());
    const click = (id, act) => element(id).addEventListener("click", act);
    click("reset", () => this.reset());
    click("all-times", () => this.go({ time: "" }));
    click("with-table", () => this.go({ beside: !this.state.beside }));
    click("turn", () => this.go({ flip: !this.state.flip }));
    element("order").addEventListener("change", event => this.go({ order: event.target.value }));
    click("absolute", () => this.go({ absolute: !this.state.absolute }));
    click("startup", () => this.go({ startup: !this.state.startup }));
    click("interpreter", () => this.go({ interpreter: !this.state.interpreter }));
    click("theme", () => this.theme());
    click("help", () => this.help());
    click("filters-head", () => { element("filters").hidden = !element("filters").hidden; this.fill(); });
    // On a phone these are not seen until then, and the colours with them.
    click("options-head", () => {
      const open = element("options").classList.toggle("open");
      document.querySelector(".under").classList.toggle("open", open);
      element("options-head").setAttribute("aria-expanded", open);
    });
    click("close", () => element("keys").close());
    for (const tab of document.querySelectorAll("#tabs [data-view]")) {
      tab.addEventListener("click", () => this.go({ view: tab.dataset.view }));
      tab.addEventListener("keydown", event => this.tabKey(event));
    }
    if (!this.timeline.known) element("order").querySelector("[value=time]").remove();
    element("startup").hidden = !this.model.startup.length;
    element("interpreter").hidden = !this.model.interpreter.length;
    element("most").value = document.documentElement.clientWidth < 600 ? 12 : 25;
    element("most").addEventListener("input", () => this.draw());
    const again = () => { if (location.hash !== this.address.text) { this.read(); this.ask(); } };
    window.addEventListener("popstate", again);
    window.addEventListener("hashchange", again);
    window.addEventListener("resize", () => { if (["butterfly", "graph"].includes(this.state.view)) this.draw(); });
    document.addEventListener("keydown", event => this.key(event));
    // Heads of tables stay below the bar.
    const bar = document.querySelector(".bar");
    new ResizeObserver(() => {
      const stays = getComputedStyle(bar).position === "sticky";
      document.documentElement.style.setProperty("--bar-height", (stays ? bar.offsetHeight : 0) + "px");
    }).observe(bar);
  }

  get views() {
    return Array.from(document.querySelectorAll("#tabs [data-view]")).filter(tab => !tab.hidden).map(tab => tab.dataset.view);
  }

  /* Orders of the boxes of a flame graph. */
  get orders() {
    return this.timeline.known ? ["weight", "name", "time"] : ["weight", "name"];
  }

  tabKey(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    const { views } = this, to = views[(views.indexOf(this.state.view) + move + views.length) % views.length];
    this.go({ view: to });
    document.querySelector(`#tabs [data-view="${to}"]`).focus();
  }

  key(event) {
    const { key } = event;
    if (element("keys").open) return;
    if (key === "Escape") return this.back();
    if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const id = this.chosen, name = id >= 0 ? this.model.functions[id].name : "";
    const acts = {
      "/": () => { event.preventDefault(); element("search").focus(); },
      "?": () => this.help(), t: () => this.theme(),
      n: () => this.search.step(1), N: () => this.search.step(-1), p: () => this.search.step(-1),
      i: () => this.go({ flip: !this.state.flip }),
      o: () => { const orders = this.orders; this.go({ order: orders[(orders.indexOf(this.state.order) + 1) % orders.length] }); },
      s: () => { if (this.model.startup.length) this.go({ startup: !this.state.startup }); },
      y: () => { if (this.model.interpreter.length) this.go({ interpreter: !this.state.interpreter }); },
      m: () => this.go({ metric: (this.state.metric + 1) % this.model.layers.length }),
      a: () => { if (this.model.isDifference) this.go({ absolute: !this.state.absolute }); },
      h: () => { if (name) this.also("hide", Pattern.of(name)); },
      f: () => { if (name) this.also("focus", Pattern.of(name)); },
      g: () => { if (name) this.also("ignore", Pattern.of(name)); },
      c: () => { if (name) this.choose(id); },
      z: () => this.go({ zoom: -1, part: "" }),
      b: () => { if (this.state.view === "flame") this.go({ beside: !this.state.beside }); },
    };
    // With what is shown of the flame graph's width.
    const moves = { "+": () => this.flame.magnify(1 / 1.5), "=": () => this.flame.magnify(1 / 1.5), "-": () => this.flame.magnify(1.5), ",": () => this.flame.move(-0.25), ".": () => this.flame.move(0.25) };
    if (this.state.view === "flame" && Object.hasOwn(moves, key)) moves[key]();
    const view = /^[1-9]$/.test(key) && this.views[key - 1];
    if (view) this.go({ view });
    else if (Object.hasOwn(acts, key)) acts[key]();
  }

  /* The function that keys are about: that of the focussed row, of the flame graph's box, or of the view. */
  get chosen() {
    const row = document.activeElement && document.activeElement.closest("[data-function]");
    if (row) return Number(row.dataset.function);
    return this.state.view === "flame" ? this.flame.chosen : this.state.view === "butterfly" ? this.sandwich.function : this.state.function;
  }

  help() {
    element("keys").showModal();
  }

  /* A step: these fields of the state change. */
  go(changes, replaces) {
    const changed = Object.keys(changes).filter(field => this.state[field] !== changes[field]);
    Object.assign(this.state, changes);
    this.address.write(replaces);
    this.fill();
    if (changed.some(field => ASKING.has(field))) this.ask();
    else this.answer(changed);
  }

  /* A part of a width, as the address has it. */
  static part(text) {
    const [, from, to] = /^([\d.]+)-([\d.]+)$/.exec(text) || [];
    return from === undefined ? [0, 1] : [Number(from), Number(to)];
  }

  /* Shows a part of the flame graph's width. All that is done without a pause is one step. */
  look(from, to) {
    const text = part => part.toFixed(7).replace(/\.?0+$/, "");
    this.state.part = to - from > 0.9999999 ? "" : text(from) + "-" + text(to);
    this.zoomed();
    this.flame.draw();
    this.overview.draw();
    clearTimeout(this.looking);
    this.looking = setTimeout(() => this.address.write(), 250);
  }

  /* A pattern to hide, focus or ignore, with what is asked already. */
  also(kind, pattern) {
    const before = kind === "focus" && !/^(thread|process|unit|container|user):/.test(pattern) ? "" : this.state[kind];
    this.go({ [kind]: before ? before + " ;; " + pattern : pattern });
  }

  /* The fields that a step of Escape takes back; the last one, all of them. */
  get steps() {
    return STEPS.filter(fields => fields.some(field => this.state[field] !== INITIAL[field]));
  }

  reset() {
    this.go(Object.fromEntries(this.steps.flat().map(field => [field, INITIAL[field]])));
  }

  back() {
    const [fields] = this.steps;
    if (fields) this.go(Object.fromEntries(fields.map(field => [field, INITIAL[field]])));
    else if (document.activeElement) document.activeElement.blur();
  }

  choose(id) {
    this.go({ view: "butterfly", function: id });
    window.scrollTo(0, 0);
  }

  /* Shows a stack that was searched for. */
  show(node) {
    const id = this.tree.ids[node];
    if (this.state.view === "flame") return this.flame.reveal(node);
    const row = document.querySelector(`main section:not([hidden]) tr[data-function="${id}"]`);
    if (row && this.state.view === "table") row.focus();
    else if (this.state.view === "butterfly" || this.state.view === "source") this.go({ function: id });
  }

  darken(is) {
    document.documentElement.classList.toggle("dark", is);
    element("theme").setAttribute("aria-pressed", is);
  }

  theme() {
    this.darken(!this.isDark);
    this.legend();
    this.timeline.draw();
    this.draw();
  }

  get isDark() {
    return document.documentElement.classList.contains("dark");
  }

  get unit() {
    return this.model.layers[this.state.metric].unit;
  }

  read() {
    const given = this.address.read(), theme = given.get("theme");
    if (theme === "dark" || theme === "light") this.darken(theme === "dark");
    this.fill();
  }

  /* The fields and toggles show the state. */
  fill() {
    const { state } = this;
    for (const id of ["search", ...PATTERN_FIELDS]) if (element(id).value.trim() !== state[id]) element(id).value = state[id];
    const press = (id, is) => element(id).setAttribute("aria-pressed", is);
    press("startup", state.startup);
    press("interpreter", state.interpreter);
    press("turn", state.flip);
    press("with-table", state.beside);
    element("order").value = state.order;
    press("absolute", state.absolute);
    element("metric").value = state.metric;
    const filters = PATTERN_FIELDS.filter(id => state[id]).length;
    if (filters) element("filters").hidden = false;
    element("filters-head").textContent = filters ? `filters (${filters})` : "filters";
    element("options-head").textContent = filters ? `options (${filters})` : "options";
    element("filters-head").setAttribute("aria-expanded", !element("filters").hidden);
    this.fillReset();
  }

  fillReset() {
    element("reset").disabled = !this.steps.length;
  }

  /* A new question: everything anew. Several patterns are separated by ";;", which `Pattern.of` escapes in names. */
  ask() {
    const patterns = text => text.split(";;").map(it => it.trim()).filter(Boolean);
    const begun = performance.now();
    const { only, hide, focus, ignore, startup, interpreter } = this.state;
    this.tree = this.model.ask({
      only: patterns(only), hide: patterns(hide), focus: patterns(focus), ignore: patterns(ignore),
      startup, interpreter, range: this.timeline.range,
    });
    for (const id of PATTERN_FIELDS) {
      const isWrong = this.tree.problems.some(it => it.kind === id);
      element(id).classList.toggle("wrong", isWrong);
      element(id).setAttribute("aria-invalid", isWrong);
    }
    const problems = this.tree.problems.map(it => it.message);
    element("problems").textContent = problems.join(". ");
    element("problems").hidden = !problems.length;
    this.answer(["metric", "search"]);
    document.documentElement.dataset.milliseconds = (performance.now() - begun).toFixed(1);
  }

  /* The answer is there; what of it is shown has changed. */
  answer(changed) {
    const { tree, state } = this;
    if (changed.includes("metric")) {
      tree.use(state.metric);
      document.documentElement.dataset.total = tree.total;
      this.flame.show(tree);
      this.say();
      this.legend();
      this.timeline.show(tree);
    }
    if (changed.includes("group")) this.legend();
    if (changed.includes("metric") || changed.includes("search")) this.search.find(tree);
    // The stack that the address names may be gone.
    const zoomed = state.zoom < 0 ? -1 : tree.place[state.zoom];
    this.flame.zoomed = zoomed >= 0 && tree.weight[zoomed] ? zoomed : -1;
    this.flame.part = Page.part(state.part);
    this.draw();
  }

  isFound(id) {
    return this.search.found.has(id);
  }

  /* Whether another package is looked at. */
  isDimmed(id) {
    return this.state.group >= 0 && this.palette.packageOf(id) !== this.state.group;
  }

  /* In a difference how a function's total time changed. */
  functionColour(id) {
    if (!this.model.isDifference) return this.palette.colour(id, this.isDark, false);
    const { after, before } = this.tree;
    return growthColour(this.growth(after.inherited[id], before.inherited[id]), this.isDark, false);
  }

  boxColour(tree, node) {
    const pale = !tree.marked[node], id = tree.ids[node];
    if (!this.model.isDifference) return this.palette.colour(id, this.isDark, pale);
    const { after, before } = this.tree;
    const growth = tree.after ? this.growth(after.weight[node], before.weight[node]) : this.growth(after.inherited[id], before.inherited[id]);
    return growthColour(growth, this.isDark, pale);
  }

  /* A weight of one profile as a share of its total; by weight, both are of the larger total. */
  shareOf(weight, layer) {
    const { after, before } = this.tree;
    const whole = this.state.absolute ? Math.max(after.total, before.total) : (layer ? before : after).total;
    return whole ? weight / whole : 0;
  }

  change(after, before) {
    return this.shareOf(after, 0) - this.shareOf(before, 1);
  }

  /* From -1, gone, to 1, new. */
  growth(after, before) {
    const is = this.shareOf(after, 0), was = this.shareOf(before, 1);
    return is || was ? (is - was) / Math.max(is, was) : 0;
  }

  changeText(after, before) {
    const was = this.shareOf(before, 1), is = this.shareOf(after, 0);
    const times = was && is ? `, ${(is / was).toFixed(2)} times` : was ? ", gone" : ", new";
    return `before ${(100 * was).toFixed(2)}%, after ${(100 * is).toFixed(2)}%: ${signed(is - was)} points${times}`;
  }

  /* What the colours mean. */
  legend() {
    const area = element("legend"), { palette, state } = this;
    area.replaceChildren();
    if (this.model.isDifference) {
      for (const [growth, text] of [[-1, "gone"], [-0.3, "less"], [0, "same"], [0.3, "more"], [1, "new"]]) {
        const item = this.add("span", undefined, area, "item");
        this.add("i", undefined, item, "swatch").style.background = growthColour(growth, this.isDark, false);
        item.append(text);
      }
      area.title = "than in the profile before";
      return;
    }
    const shares = this.legendShares(), kinds = { own: "the program's code", library: "library", kernel: "kernel", generated: "generated code", mark: "marks of ccsd" };
    palette.packages.forEach((it, number) => {
      const { self, total } = shares[number];
      // What is hardly seen is left to the tips.
      if (self < this.tree.total / 200 && total < this.tree.total / 20) return;
      const button = this.add("button", undefined, area, "item");
      button.type = "button";
      button.setAttribute("aria-pressed", state.group === number);
      const parts = it.tones.length > 1 ? `; its parts have ${it.tones.length} colours` : "";
      button.title = `${it.name}: ${kinds[it.kind]}, ${percent(self, this.tree.total)} of self time${parts}; click to see it alone`;
      this.swatch(button, palette.colours(it, this.isDark));
      button.append(it.name.length > 32 ? it.name.slice(0, 31) + "…" : it.name);
      this.add("span", ` ${(100 * self / (this.tree.total || 1)).toFixed(1)}%`, button, "faint");
      button.addEventListener("click", () => this.go({ group: state.group === number ? -1 : number }));
    });
  }

  swatch(parent, colours) {
    const swatch = this.add("i", undefined, parent, colours.length > 1 ? "swatch wide" : "swatch"), each = 100 / colours.length;
    const stops = colours.map((colour, i) => `${colour} ${i * each}% ${(i + 1) * each}%`).join(", ");
    swatch.style.background = colours.length > 1 ? `linear-gradient(to right, ${stops})` : colours[0];
  }

  /* What the functions of each package spent in the answer: of total time that of the one with most. */
  legendShares() {
    const { tree, palette } = this, shares = palette.packages.map(() => ({ self: 0, total: 0 }));
    for (const { function: { id }, self, inherited } of tree.flat()) {
      const entry = shares[palette.packageOf(id)];
      if (entry) { entry.self += self; entry.total = Math.max(entry.total, inherited); }
    }
    return shares;
  }

  /* The expensive arm, in words, above everything else. */
  say() {
    const answer = element("answer"), { tree } = this;
    answer.replaceChildren();
    if (!tree.total) return void this.add("span", "No samples are left.", answer);
    const name = (it, go) => {
      const button = this.add("button", it.shown.length > 60 ? it.shown.slice(0, 59) + "…" : it.shown, answer);
      button.type = "button";
      button.addEventListener("click", go);
    };
    if (this.model.isDifference) this.saySides(answer, name);
    else {
      const path = tree.hotPath().filter(node => this.model.functions[tree.ids[node]].image !== "[ccsd]");
      const steps = path.filter((node, i) => i === path.length - 1 || tree.weight[path[i + 1]] < 0.9 * tree.weight[node]).slice(0, 4);
      if (steps.length) this.add("span", "Most expensive: ", answer);
      steps.forEach((node, i) => {
        name(this.model.functions[tree.ids[node]], () => this.go({ view: "flame", zoom: tree.origin[node], part: "" }));
        this.add("span", ` ${percent(tree.weight[node], tree.total)}${i === steps.length - 1 ? "" : " → "}`, answer);
      });
      const most = tree.flat().filter(it => it.function.image !== "[ccsd]").sort((a, b) => b.self - a.self)[0];
      if (most) {
        this.add("span", steps.length ? "; most self time: " : "Most self time: ", answer);
        name(most.function, () => this.choose(most.function.id));
        this.add("span", ` ${percent(most.self, tree.total)}.`, answer);
      }
    }
    if (tree.total !== tree.whole) this.add("span", ` Of ${this.amount(tree.whole, true)}, ${this.amount(tree.total, true)} are shown.`, answer);
  }

  /* What grew and what shrank most. */
  saySides(answer, name) {
    const { after, before } = this.tree, rows = this.tree.flat().map(row => row.function);
    const change = it => this.change(after.self[it.id], before.self[it.id]);
    const [first, ...rest] = rows.sort((a, b) => change(b) - change(a)), last = rest.length ? rest[rest.length - 1] : first;
    const say = (word, it) => {
      this.add("span", word, answer);
      name(it, () => this.choose(it.id));
      this.add("span", ` ${signed(change(it))} points of self time`, answer);
    };
    if (change(first) > 0) say("Grew most: ", first);
    if (change(last) < 0) say(change(first) > 0 ? "; shrank most: " : "Shrank most: ", last);
    this.add("span", `. In all ${this.bare(before.total)} before, ${this.bare(after.total)} after.`, answer);
  }

  /* A weight in a unit that can be read, with its share unless `isBare`. */
  amount(weight, isBare) {
    return isBare ? this.bare(weight) : `${this.bare(weight)} (${percent(weight, this.tree.total)})`;
  }

  bare(weight) {
    if (!weight) return "0";
    const [divisor, unit, digits] = unitFor(weight, this.unit);
    return (weight / divisor).toFixed(digits) + " " + unit;
  }

  showTip(event, text) {
    const { tip } = this;
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18, above = event.clientY - tip.offsetHeight - 12;
    tip.style.left = Math.max(left, 4) + "px";
    tip.style.top = (below + tip.offsetHeight > window.innerHeight && above > 0 ? above : below) + "px";
  }

  draw() {
    const { view } = this.state;
    for (const tab of document.querySelectorAll("#tabs [data-view]")) {
      tab.setAttribute("aria-selected", tab.dataset.view === view);
      tab.tabIndex = tab.dataset.view === view ? 0 : -1;
    }
    for (const section of document.querySelectorAll("main section")) section.hidden = section.dataset.view !== view;
    // Only the flame graph has a direction and an order.
    element("turn").hidden = element("with-table").hidden = view !== "flame";
    element("orders").hidden = view !== "flame" && view !== "butterfly";
    for (const tab of document.querySelectorAll("#tabs [aria-selected=true]")) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.tip.hidden = true;
    ({
      flame: () => {
        element("pane").hidden = !this.state.beside;
        element("panes").classList.toggle("both", this.state.beside);
        if (this.state.beside) this.beside.show(this.tree);
        this.zoomed();
        this.flame.draw();
        this.overview.draw();
      },
      table: () => this.functions.show(this.tree),
      butterfly: () => this.sandwich.show(this.tree),
      graph: () => this.graph.show(this.tree, Number(element("most").value)),
      hot: () => this.hot(),
      time: () => this.timeline.table(),
      source: () => this.source.show(this.tree),
    })[view]();
  }

  /* What the flame graph is zoomed into, and what can be done with it. */
  zoomed() {
    const area = element("zoomed"), { flame, tree } = this, node = flame.zoomed, [from, to] = flame.part;
    area.replaceChildren();
    const actions = list => {
      for (const [text, act] of list) {
        const button = this.add("button", text, area);
        button.type = "button";
        button.addEventListener("click", act);
      }
    };
    const out = ["zoom out", () => this.go({ zoom: -1, part: "" })];
    if (node >= 0) {
      const it = this.model.functions[tree.ids[node]];
      this.add("strong", it.shown, area);
      this.add("span", `total ${this.amount(tree.weight[node])}, self ${this.amount(tree.own[node])}`, area);
      actions([out, ["callers and callees", () => this.choose(it.id)], ["focus", () => this.also("focus", Pattern.of(it.name))], ["hide", () => this.also("hide", Pattern.of(it.name))]]);
    } else if (to - from < 1) {
      this.add("span", `${percent(to - from, 1)} of the width`, area);
      actions([out]);
    } else {
      const hint = this.isTouched ? "tap a box: zoom into it; two fingers: zoom and move" : "click: zoom into a box; Ctrl and wheel, drag: zoom and move; right click: callers and callees";
      this.add("span", hint, area, "faint");
    }
  }

  /* The most expensive chain of calls. */
  hot() {
    const { tree } = this;
    const rows = tree.hotPath().map((node, at) => ({ node, function: this.model.functions[tree.ids[node]], at, unsure: tree.unsure[node] || tree.gap[node] }));
    const columns = [
      { head: "total", kind: "weight", key: row => tree.weight[row.node], className: "amount" },
      { head: "total %", kind: "share", key: row => tree.weight[row.node] / tree.total, barred: true },
      { head: "self", kind: "weight", key: row => tree.own[row.node], className: "amount" },
      { head: "self %", kind: "share", key: row => tree.own[row.node] / tree.total },
    ];
    if (tree.after) columns.push({ head: "total change", kind: "change", key: row => this.change(tree.after.weight[row.node], tree.before.weight[row.node]), className: "amount" });
    columns.push({ head: "function", kind: "name", key: row => this.flame.label(row.node), indent: row => Math.min(row.at, 12) });
    new Rows(this, element("hot"), columns).show(rows, { choose: id => this.choose(id) });
  }
}

new Page(JSON.parse(element("data").textContent));
document.documentElement.dataset.ready = "1";
