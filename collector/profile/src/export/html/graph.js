"use strict";
/* The call graph: the heaviest functions as boxes in layers, callers above callees, as wide as they are heavy; arcs as thick as
 * they are heavy. Calls through functions that are not shown are thin and dashed. */

const SVG = "http://www.w3.org/2000/svg";
const BOX = { high: 40, between: 32, apart: 10, narrowest: 78, numbers: 168, lane: 12 };

class Graph {
  constructor(area, page) {
    this.area = area;
    this.page = page;
  }

  /* The heaviest functions and the arcs between them. */
  show(tree, most) {
    this.area.replaceChildren();
    if (!tree.total) return;
    const { page } = this;
    const size = row => (tree.after ? Math.max(page.shareOf(tree.after.inherited[row.function.id], 0), page.shareOf(tree.before.inherited[row.function.id], 1)) : row.inherited);
    const rows = tree.flat().sort((a, b) => size(b) - size(a)).slice(0, most);
    const places = new Map(rows.map((row, i) => [row.function.id, i]));
    const nodes = rows.map(row => ({ row, out: [], layer: 0 }));
    const wanted = new Uint8Array(page.model.functions.length);
    for (const row of rows) wanted[row.function.id] = 1;
    const least = tree.total / 500;
    const arc = (it, isIndirect) => ({ ...it, from: places.get(it.from), to: places.get(it.to), isIndirect });
    const direct = tree.arcs((from, to) => places.has(from) && places.has(to)).out.filter(it => it.weight >= least || it.before >= least);
    const known = new Set(direct.map(it => it.from + ">" + it.to));
    const indirect = tree.indirect(wanted).filter(it => it.weight >= least && !known.has(it.from + ">" + it.to));
    const arcs = [...direct.map(it => arc(it, false)), ...indirect.map(it => arc(it, true))].filter(it => it.from !== it.to);
    for (const it of arcs) nodes[it.from].out.push(it);
    this.layers(nodes);
    this.draw(tree, nodes, this.lanes(nodes, arcs), arcs);
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

  /* What stands in each layer: boxes, and lanes for the arcs that pass through it. An arc's `stops` are what it goes through. */
  lanes(nodes, arcs) {
    const layers = [];
    const put = item => { (layers[item.layer] ||= []).push(item); return item; };
    for (const node of nodes) put(Object.assign(node, { near: [] }));
    for (const arc of arcs) {
      if (arc.back) continue;
      const stops = [nodes[arc.from]];
      for (let layer = nodes[arc.from].layer + 1; layer < nodes[arc.to].layer; layer++) stops.push(put({ lane: arc, layer, near: [] }));
      stops.push(nodes[arc.to]);
      for (let i = 1; i < stops.length; i++) {
        stops[i - 1].near.push([stops[i], arc.weight]);
        stops[i].near.push([stops[i - 1], arc.weight]);
      }
      arc.stops = stops;
    }
    return layers;
  }

  /* Widths for the names and by weight, and places near those of the neighbours, within the room that there is. */
  place(layers, total, room) {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = "600 12px system-ui, sans-serif";
    let width = room;
    for (const layer of layers) {
      const boxes = layer.filter(it => it.row), lanes = layer.length - boxes.length;
      const left = room - lanes * (BOX.lane + BOX.apart) - boxes.length * BOX.apart;
      for (const it of boxes) {
        const needs = Math.max(pen.measureText(it.row.function.shown).width + 18, BOX.numbers);
        it.width = Math.min(Math.max(needs, it.row.inherited / total * room * 0.45), room * 0.6);
      }
      // Where they do not all fit, each gives up the same part of what it has above the least.
      const sum = boxes.reduce((sum, it) => sum + it.width, 0), least = boxes.length * BOX.narrowest;
      const part = sum > left ? Math.max((left - least) / (sum - least), 0) : 1;
      for (const it of boxes) it.width = Math.max(BOX.narrowest + (it.width - BOX.narrowest) * part, BOX.narrowest);
      for (const it of layer) if (!it.row) it.width = BOX.lane;
      width = Math.max(width, layer.reduce((sum, it) => sum + it.width + BOX.apart, 0));
    }
    const middle = it => it.x + it.width / 2, pull = it => (it.row ? it.row.inherited : it.lane.weight) + 1;
    // The heaviest in the middle at first, the others left and right of it.
    for (const layer of layers) {
      const order = layer.slice().sort((a, b) => pull(b) - pull(a)), sides = [[], []];
      order.forEach((it, i) => sides[i % 2].push(it));
      layer.splice(0, layer.length, ...sides[1].reverse(), ...sides[0]);
      const free = (width - layer.reduce((sum, it) => sum + it.width, 0)) / layer.length;
      let x = free / 2;
      for (const it of layer) { it.x = x; x += it.width + free; }
    }
    for (let round = 0; round < 24; round++) {
      const order = round % 2 ? layers.slice().reverse() : layers;
      for (const layer of order) {
        for (const it of layer) {
          const near = it.near.filter(([other]) => (round % 2 ? other.layer > it.layer : other.layer < it.layer));
          const list = near.length ? near : it.near;
          const sum = list.reduce((sum, [, weight]) => sum + weight, 0);
          it.aim = sum ? list.reduce((all, [other, weight]) => all + middle(other) * weight, 0) / sum : middle(it);
        }
        layer.sort((a, b) => a.aim - b.aim);
        Graph.spread(layer, width, pull);
      }
    }
    // The heaviest chain in the middle of the width, as far as there is room on its sides.
    const all = layers.flat(), from = Math.min(...all.map(it => it.x)), to = Math.max(...all.map(it => it.x + it.width));
    const heaviest = all.reduce((best, it) => (pull(it) > pull(best) ? it : best));
    const shift = Math.min(Math.max(width / 2 - middle(heaviest), -from), width - to);
    for (const it of all) it.x += shift;
    return width;
  }

  /* Puts items in their order as near to their aims as there is room: where some would overlap, each pulls as it is heavy. */
  static spread(layer, width, pull) {
    const groups = [];
    for (const it of layer) {
      const wide = it.width + BOX.apart;
      let group = { items: [it], wide, pull: pull(it), sum: pull(it) * (it.aim - wide / 2) };
      for (;;) {
        group.left = Math.min(Math.max(group.sum / group.pull, 0), Math.max(width - group.wide, 0));
        const last = groups[groups.length - 1];
        if (!last || last.left + last.wide <= group.left + 0.01) break;
        groups.pop();
        // Where the left edge of both should be.
        const sum = last.sum + group.sum - group.pull * last.wide;
        group = { items: [...last.items, ...group.items], wide: last.wide + group.wide, pull: last.pull + group.pull, sum };
      }
      groups.push(group);
    }
    for (const group of groups) {
      let x = group.left + BOX.apart / 2;
      for (const it of group.items) { it.x = x; x += it.width + BOX.apart; }
    }
  }

  draw(tree, nodes, layers, arcs) {
    const { page } = this;
    const width = this.place(layers, tree.total, Math.max(this.area.clientWidth - 2, 280));
    const step = BOX.high + BOX.between, height = layers.length * step - BOX.between + 24;
    const y = layer => layer * step + 12;
    const make = (name, attributes, parent, text) => {
      const it = document.createElementNS(SVG, name);
      for (const key in attributes) it.setAttribute(key, attributes[key]);
      if (text !== undefined) it.textContent = text;
      parent.append(it);
      return it;
    };
    const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "call graph" }, this.area);
    const path = tree.hotPath().map(node => tree.ids[node]), hot = new Set(path.slice(1).map((id, i) => path[i] + ">" + id));
    const shares = [];
    for (const arc of arcs) {
      const from = nodes[arc.from], to = nodes[arc.to], middle = it => it.x + it.width / 2;
      const is = !arc.isIndirect && hot.has(from.row.function.id + ">" + to.row.function.id);
      const classes = "arc" + (is ? " hot" : "") + (arc.unsure ? " unsure" : "") + (arc.isIndirect ? " indirect" : "");
      const line = make("path", {
        d: arc.back ? Graph.backwards(from, to, y) : Graph.downwards(arc.stops, y, middle), class: classes,
        "stroke-width": arc.isIndirect ? 1 : Math.max(8 * arc.weight / tree.total, 1),
      }, svg);
      if (tree.after && !arc.isIndirect && Math.abs(page.growth(arc.after, arc.before)) > 0.05) line.style.stroke = growthColour(page.growth(arc.after, arc.before), page.isDark, false);
      const text = [`${from.row.function.name} → ${to.row.function.name}`, page.amount(arc.weight)];
      if (arc.isIndirect) text.push("through functions that are not shown");
      if (arc.unsure) text.push("~: the caller or callee may be another");
      if (tree.after && !arc.isIndirect) text.push(page.changeText(arc.after, arc.before));
      make("title", {}, line, text.join("\n"));
      if (arc.weight > tree.total / 50 && !arc.back) {
        const end = arc.stops[1];
        shares.push({ x: (middle(from) + middle(end)) / 2, y: y(from.layer) + BOX.high + BOX.between / 2 + 4, text: percent(arc.weight, tree.total) });
      }
    }
    this.shares(shares, text => {
      const wide = 7 * text.text.length + 4;
      make("rect", { x: text.x - wide / 2, y: text.y - 12, width: wide, height: 16, rx: 3, class: "ground" }, svg);
      make("text", { x: text.x, y: text.y, class: "share" }, svg, text.text);
    });
    const onPath = new Set(path), pen = document.createElement("canvas").getContext("2d");
    pen.font = "600 12px system-ui, sans-serif";
    for (const { row, x, width: wide, layer } of nodes) {
      const it = row.function, box = make("g", {
        class: "node" + (onPath.has(it.id) ? " hot" : "") + (page.isFound(it.id) ? " found" : ""), tabindex: 0, role: "button",
        transform: `translate(${x} ${y(layer)})`,
      }, svg);
      const fill = tree.after ? growthColour(page.growth(tree.after.inherited[it.id], tree.before.inherited[it.id]), page.isDark, false) : page.functionColour(it.id);
      make("rect", { width: wide, height: BOX.high, rx: 4, fill }, box);
      make("text", { x: 7, y: 16, class: "name" }, box, fit(pen, it.shown, wide - 12));
      const total = percent(row.inherited, tree.total), self = percent(row.self, tree.total);
      const change = tree.after && signed(page.change(tree.after.inherited[it.id], tree.before.inherited[it.id]));
      const says = tree.after ? `${total}  ${change}` : wide >= BOX.numbers ? `total ${total}  self ${self}` : total;
      make("text", { x: 7, y: 32 }, box, says);
      const text = `${it.name}\ntotal ${page.amount(row.inherited)}, self ${page.amount(row.self)}`;
      make("title", {}, box, tree.after ? `${text}\n${page.changeText(tree.after.inherited[it.id], tree.before.inherited[it.id])}` : text);
      box.addEventListener("click", () => page.choose(it.id));
      box.addEventListener("keydown", event => { if (event.key === "Enter") page.choose(it.id); });
    }
    // Where it is wider than the screen, the heaviest functions are seen first.
    const first = nodes.reduce((best, it) => (it.row.inherited > best.row.inherited ? it : best));
    this.area.scrollLeft = first.x + first.width / 2 - this.area.clientWidth / 2;
    element("shown-most").textContent = nodes.length;
  }

  /* Shares of arcs that would stand on each other are left to the tips. */
  shares(list, draw) {
    const drawn = [];
    for (const it of list) {
      if (drawn.some(other => Math.abs(other.x - it.x) < 48 && Math.abs(other.y - it.y) < 14)) continue;
      drawn.push(it);
      draw(it);
    }
  }

  /* From the bottom of the caller to the top of the callee, straight through the lanes between. */
  static downwards(stops, y, middle) {
    let path = `M${middle(stops[0])} ${y(stops[0].layer) + BOX.high}`;
    for (let i = 1; i < stops.length; i++) {
      const [above, below] = [stops[i - 1], stops[i]], [ax, ay, bx, by] = [middle(above), y(above.layer) + BOX.high, middle(below), y(below.layer)];
      path += `C${ax} ${ay + BOX.between / 2} ${bx} ${by - BOX.between / 2} ${bx} ${by}`;
      if (i < stops.length - 1) path += `V${by + BOX.high}`;
    }
    return path;
  }

  /* Up again to a function that is above, or beside: around the right side. */
  static backwards(from, to, y) {
    const [ax, ay, bx, by] = [from.x + from.width, y(from.layer) + BOX.high / 2, to.x + to.width, y(to.layer) + BOX.high / 2];
    const bend = Math.max(ax, bx) + 34;
    return `M${ax} ${ay}C${bend} ${ay} ${bend} ${by} ${bx} ${by}`;
  }
}
