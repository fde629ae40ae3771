"use strict";
/* The call graph: functions as boxes in layers, callers above callees, arcs as thick as they are heavy. */

const SVG = "http://www.w3.org/2000/svg";

class Graph {
  constructor(area, page) {
    this.area = area;
    this.page = page;
  }

  /* The heaviest functions and the arcs between them. */
  show(tree, most) {
    this.area.replaceChildren();
    if (!tree.total) return;
    const rows = tree.flat().sort((a, b) => b.inherited - a.inherited).slice(0, most);
    const places = new Map(rows.map((row, i) => [row.function.id, i]));
    const nodes = rows.map(row => ({ row, out: [], layer: 0 }));
    const arcs = tree.arcs((from, to) => places.has(from) && places.has(to)).out.filter(arc => arc.weight >= tree.total / 500)
      .map(arc => ({ from: places.get(arc.from), to: places.get(arc.to), weight: arc.weight, unsure: arc.unsure }));
    for (const arc of arcs) nodes[arc.from].out.push(arc);
    this.layers(nodes);
    const layers = this.order(nodes, arcs);
    this.draw(tree, nodes, arcs, layers);
  }

  /* Each function one layer below its lowest caller; arcs that close a circle do not count. */
  layers(nodes) {
    const state = new Uint8Array(nodes.length), order = [];
    for (let start = 0; start < nodes.length; start++) {
      const path = [[start, 0]];
      if (state[start]) continue;
      state[start] = 1;
      while (path.length) {
        const top = path[path.length - 1];
        const arc = nodes[top[0]].out[top[1]++];
        if (!arc) { state[top[0]] = 2; order.push(top[0]); path.pop(); continue; }
        if (state[arc.to] === 1) arc.back = true;
        else if (!state[arc.to]) { state[arc.to] = 1; path.push([arc.to, 0]); }
      }
    }
    for (const at of order.reverse()) {
      for (const arc of nodes[at].out) if (!arc.back) nodes[arc.to].layer = Math.max(nodes[arc.to].layer, nodes[at].layer + 1);
    }
  }

  /* Places within a layer, by the middle of the neighbours', a few times. */
  order(nodes, arcs) {
    const layers = [];
    nodes.forEach((node, at) => (layers[node.layer] ||= []).push(at));
    const full = Array.from(layers, it => it || []);
    const place = new Float64Array(nodes.length);
    const number = () => full.forEach(layer => layer.forEach((at, i) => { place[at] = (i + 0.5) / layer.length; }));
    number();
    for (let round = 0; round < 6; round++) {
      for (const layer of full) {
        const middle = at => {
          const near = arcs.filter(arc => (round % 2 ? arc.from : arc.to) === at && !arc.back);
          const sum = near.reduce((total, arc) => total + arc.weight, 0);
          return sum ? near.reduce((total, arc) => total + place[round % 2 ? arc.to : arc.from] * arc.weight, 0) / sum : place[at];
        };
        const middles = new Map(layer.map(at => [at, middle(at)]));
        layer.sort((a, b) => middles.get(a) - middles.get(b));
      }
      number();
    }
    return full;
  }

  draw(tree, nodes, arcs, layers) {
    const wide = 190, high = 46, gap = 24, step = 92;
    const most = Math.max(...layers.map(layer => layer.length));
    const width = Math.max(most * (wide + gap) + gap, 400), height = layers.length * step + 30;
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", "call graph");
    const hot = new Set();
    const path = tree.hotPath().map(node => tree.ids[node]);
    for (let i = 1; i < path.length; i++) hot.add(path[i - 1] + ">" + path[i]);
    const x = new Map(), y = at => nodes[at].layer * step + 16;
    layers.forEach(layer => layer.forEach((at, i) => x.set(at, (width - layer.length * (wide + gap)) / 2 + i * (wide + gap) + gap / 2)));
    const make = (name, attributes, parent, text) => {
      const it = document.createElementNS(SVG, name);
      for (const key in attributes) it.setAttribute(key, attributes[key]);
      if (text !== undefined) it.textContent = text;
      parent.append(it);
      return it;
    };
    for (const arc of arcs) {
      const [ax, ay] = [x.get(arc.from) + wide / 2, y(arc.from) + high], [bx, by] = [x.get(arc.to) + wide / 2, y(arc.to)];
      const bend = arc.back ? 70 : Math.max((by - ay) / 2, 18);
      const is = hot.has(nodes[arc.from].row.function.id + ">" + nodes[arc.to].row.function.id);
      const line = make("path", {
        d: `M${ax} ${ay} C${ax + (arc.back ? wide : 0)} ${ay + bend} ${bx + (arc.back ? wide : 0)} ${by - bend} ${bx} ${by}`,
        class: "arc" + (is ? " hot" : "") + (arc.unsure ? " unsure" : ""), "stroke-width": Math.max(7 * arc.weight / tree.total, 0.7),
      }, svg);
      const caller = nodes[arc.from].row.function.name, callee = nodes[arc.to].row.function.name;
      make("title", {}, line, `${caller} → ${callee}\n${this.page.amount(arc.weight)}${arc.unsure ? "\n~: the caller or callee may be another" : ""}`);
      if (arc.weight > tree.total / 50 && !arc.back) {
        make("text", { x: (ax + bx) / 2, y: (ay + by) / 2, class: "share" }, svg, percent(arc.weight, tree.total));
      }
    }
    const onPath = new Set(path);
    nodes.forEach(({ row }, at) => {
      const box = make("g", { class: "node" + (onPath.has(row.function.id) ? " hot" : ""), tabindex: 0, transform: `translate(${x.get(at)} ${y(at)})` }, svg);
      make("rect", { width: wide, height: high, rx: 5, fill: colour(row.function, this.page.isDark(), false) }, box);
      const cut = row.function.name.length > 24 ? row.function.name.slice(0, 23) + "…" : row.function.name;
      make("text", { x: 8, y: 18, class: "name" }, box, cut);
      make("text", { x: 8, y: 36 }, box, `${percent(row.inherited, tree.total)}  (${percent(row.self, tree.total)} itself)`);
      make("title", {}, box, `${row.function.name}\n${this.page.amount(row.inherited)}, ${this.page.amount(row.self)} of it itself`);
      const choose = () => this.page.choose(row.function.id);
      box.addEventListener("click", choose);
      box.addEventListener("keydown", event => { if (event.key === "Enter") choose(); });
    });
    this.area.append(svg);
  }
}

function percent(part, whole) {
  return whole ? (100 * part / whole).toFixed(2) + "%" : "0%";
}
