"use strict";
/* A flame graph: every stack as a column of boxes, as wide as it is heavy, the heaviest first ("left-heavy"), by name, or in the order
 * of time. Drawn on a canvas: fifty thousand boxes are too many for a document. */

const ROW = 20, NARROWEST = 0.5;

class Flame {
  /* `grows` says whether callees stand above their callers; `zooms` what a click does. */
  constructor(canvas, page, { grows, zooms }) {
    this.canvas = canvas;
    this.page = page;
    this.grows = grows;
    this.zooms = zooms;
    this.zoomed = -1;
    this.selected = -1;
    canvas.addEventListener("mousemove", event => this.hover(event));
    canvas.addEventListener("mouseleave", () => { page.tip.hidden = true; });
    canvas.addEventListener("click", event => { const box = this.at(event); this.zoom(box ? box.node : -1); });
    canvas.addEventListener("contextmenu", event => {
      const box = this.at(event);
      if (box && !box.rest) { event.preventDefault(); page.choose(this.tree.ids[box.node]); }
    });
    canvas.addEventListener("keydown", event => this.key(event));
    new ResizeObserver(() => { if (this.width !== canvas.parentElement.clientWidth) this.draw(); }).observe(canvas.parentElement);
  }

  /* Another tree, for the next time that it is drawn. */
  show(tree) {
    this.tree = tree;
    this.zoomed = -1;
    this.selected = -1;
  }

  /* The function that keys are about. */
  get chosen() {
    const node = this.selected >= 0 ? this.selected : this.zoomed;
    return node >= 0 ? this.tree.ids[node] : -1;
  }

  ordered(nodes) {
    if (this.page.state.order !== "name") return nodes;
    const { functions } = this.tree.model, name = node => functions[this.tree.ids[node]].name;
    return nodes.slice().sort((a, b) => (name(a) < name(b) ? -1 : name(a) > name(b) ? 1 : a - b));
  }

  /* Boxes that are wide enough to be seen, by row; neighbours that are not are one. */
  layout(width) {
    const { tree } = this;
    const boxes = [], above = [];
    for (let node = this.zoomed; node >= 0; node = tree.parents[node]) above.unshift(node);
    const whole = this.zoomed >= 0 ? tree.weight[this.zoomed] : tree.total;
    if (!whole) return { boxes, depth: 0 };
    above.forEach((node, depth) => boxes.push({ node, x: 0, width, depth, above: depth < above.length - 1 }));
    let depth = above.length;
    let row = [{ nodes: tree.children(this.zoomed), x: 0 }];
    const scale = width / whole;
    const times = this.page.state.order === "time" && this.page.timeline.stacks(tree);
    if (times) return this.layoutByTime(boxes, depth, width, times);
    while (row.length) {
      const next = [];
      for (const { nodes, x } of row) {
        let left = x, rest = null;
        const close = () => { if (rest && rest.width >= NARROWEST) boxes.push(rest); rest = null; };
        for (const node of this.ordered(nodes)) {
          const wide = tree.weight[node] * scale;
          if (!wide) continue;
          if (wide < NARROWEST) {
            rest ||= { node, x: left, width: 0, depth, rest: 0, weight: 0 };
            rest.width += wide;
            rest.weight += tree.weight[node];
            rest.rest++;
          } else {
            close();
            boxes.push({ node, x: left, width: wide, depth });
            const nodes = tree.children(node);
            if (nodes.length) next.push({ nodes, x: left });
          }
          left += wide;
        }
        close();
      }
      depth++;
      row = next;
    }
    return { boxes, depth: deepest(boxes) };
  }

  /* The same in columns of time, one after the other, each as wide as what was spent in it; a function that goes on from one
   * to the next is one box. */
  layoutByTime(boxes, top, width, columns) {
    const { tree, zoomed } = this, weightIn = column => column.weight.get(zoomed) || 0;
    const scale = width / columns.reduce((sum, column) => sum + weightIn(column), 0);
    const last = []; // the rightmost box of each row
    let left = 0;
    const put = (node, x, wide, depth) => {
      const before = last[depth], isRest = wide < NARROWEST, touches = before && Math.abs(before.x + before.width - x) < 0.01;
      if (touches && (isRest ? before.rest : before.node === node && !before.rest)) {
        before.width += wide;
        if (isRest) { before.rest++; before.weight += wide / scale; }
        return;
      }
      const box = { node, x, width: wide, depth, ...(isRest ? { rest: 1, weight: wide / scale } : {}) };
      boxes.push(last[depth] = box);
    };
    for (const column of columns) {
      const waiting = [[zoomed, left, top]];
      while (waiting.length) {
        const [above, from, depth] = waiting.pop();
        let x = from;
        for (const node of column.children.get(above) || []) {
          const wide = column.weight.get(node) * scale;
          put(node, x, wide, depth);
          if (wide >= NARROWEST) waiting.push([node, x, depth + 1]);
          x += wide;
        }
      }
      left += weightIn(column) * scale;
    }
    const seen = boxes.filter(box => box.width >= NARROWEST);
    return { boxes: seen, depth: deepest(seen) };
  }

  draw() {
    const { canvas, tree, page } = this;
    if (!tree || !canvas.parentElement.clientWidth) return;
    const ratio = window.devicePixelRatio || 1;
    const width = this.width = canvas.parentElement.clientWidth;
    const { boxes, depth } = this.layout(width);
    this.boxes = boxes;
    this.depth = Math.max(depth, 1);
    const height = this.depth * ROW;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const style = getComputedStyle(document.documentElement), colour = name => style.getPropertyValue(name);
    const ink = colour("--box-ink"), found = colour("--found"), foundInk = colour("--found-ink"), hot = colour("--hot");
    const path = new Set(tree.hotPath());
    for (const box of boxes) {
      const y = this.y(box), wide = Math.max(box.width - (box.width > 3 ? 1 : 0), 0.5);
      const id = tree.ids[box.node], is = !box.rest && page.isFound(id);
      pen.globalAlpha = box.above ? 0.5 : page.isDimmed(id) ? 0.18 : box.rest ? 0.5 : 1;
      pen.fillStyle = is ? found : page.boxColour(tree, box.node);
      pen.fillRect(box.x, y, wide, ROW - 1);
      if (path.has(box.node) && !box.rest) {
        pen.fillStyle = hot;
        pen.fillRect(box.x, y + ROW - 3, wide, 2);
      }
      if (box.node === this.selected && !box.rest) {
        pen.strokeStyle = ink;
        pen.lineWidth = 2;
        pen.strokeRect(box.x + 1, y + 1, Math.max(box.width - 3, 1), ROW - 3);
      }
      if (box.width > 24 && !box.rest) {
        pen.fillStyle = is ? foundInk : ink;
        const text = fit(pen, this.label(box.node), box.width - 8);
        pen.fillText(text, box.x + 4, y + ROW / 2);
        // The share, where there is room for it.
        const end = box.x + 4 + pen.measureText(text).width + 10;
        if (page.state.order !== "time" && end + 46 < box.x + box.width) {
          pen.globalAlpha *= 0.65;
          pen.fillText(percent(tree.weight[box.node], page.tree.total), end, y + ROW / 2);
        }
      }
    }
    pen.globalAlpha = 1;
  }

  y(box) {
    return (this.grows() ? this.depth - 1 - box.depth : box.depth) * ROW;
  }

  label(node) {
    const { tree } = this, name = tree.model.functions[tree.ids[node]].name;
    const sure = tree.gap[node] ? "[...] " : tree.unsure[node] ? "~" : "";
    return sure + (tree.marked[node] ? name : "(" + name + ")");
  }

  at(event) {
    const area = this.canvas.getBoundingClientRect();
    const x = event.clientX - area.left, y = event.clientY - area.top;
    return (this.boxes || []).find(box => x >= box.x && x < box.x + box.width && y >= this.y(box) && y < this.y(box) + ROW);
  }

  hover(event) {
    const box = this.at(event);
    this.page.showTip(event, box && this.describe(box));
  }

  describe(box) {
    const { tree, page } = this, { node } = box;
    if (box.rest) return `${box.rest} ${box.rest === 1 ? "function" : "functions"} too narrow to show\n${page.amount(box.weight)}; zoom in to see them`;
    const it = tree.model.functions[tree.ids[node]];
    const lines = [it.longName.length < 300 ? it.longName : it.name, it.image + (it.file ? "  " + it.file + (it.line ? ":" + it.line : "") : "")];
    lines.push(`here: total ${page.amount(tree.weight[node])}, self ${page.amount(tree.own[node])}`);
    const whole = tree.whole instanceof Tree ? tree.whole : tree;
    lines.push(`everywhere: total ${page.amount(whole.inherited[it.id])}, self ${page.amount(whole.self[it.id])}`);
    if (tree.after) lines.push(page.changeText(tree.after.weight[node], tree.before.weight[node]));
    if (!tree.marked[node]) lines.push("(recursion is folded: it is active again further in)");
    if (tree.gap[node]) lines.push("[...]: recursion was squeezed out here; the function above may not have called this one");
    else if (tree.unsure[node]) lines.push("~: the caller may be another, for what is hidden or merged");
    return lines.join("\n");
  }

  /* To a node, or back from it to its caller. */
  zoom(node) {
    if (!this.tree) return;
    const to = node === this.zoomed ? this.tree.parents[node] ?? -1 : node;
    this.selected = node;
    this.zooms(to);
    if (node >= 0) this.canvas.setAttribute("aria-label", this.describe({ node }));
  }

  /* Selects a node and brings it into view. */
  reveal(node) {
    const isSeen = (this.boxes || []).some(box => box.node === node && !box.rest && !box.above && box.width >= 3);
    this.selected = node;
    if (isSeen) this.draw();
    else this.zooms(node);
    const box = this.boxes.find(box => box.node === node && !box.rest);
    if (!box) return;
    const top = this.canvas.getBoundingClientRect().top + this.y(box);
    if (top < 60 || top > window.innerHeight - 60) window.scrollBy(0, top - window.innerHeight / 2);
  }

  /* Arrows walk through the stacks. */
  key(event) {
    const { tree } = this;
    const siblings = this.ordered(tree.children(this.selected < 0 ? -1 : tree.parents[this.selected]));
    const at = siblings.indexOf(this.selected);
    const [inwards, outwards] = this.grows() ? ["ArrowUp", "ArrowDown"] : ["ArrowDown", "ArrowUp"];
    const first = node => this.ordered(tree.children(node))[0];
    let to = null;
    if (event.key === inwards) to = first(this.selected);
    else if (event.key === outwards) to = this.selected < 0 ? null : tree.parents[this.selected];
    else if (event.key === "ArrowRight") to = siblings[Math.min(at + 1, siblings.length - 1)];
    else if (event.key === "ArrowLeft") to = siblings[Math.max(at - 1, 0)];
    else if (event.key === "Enter" && this.selected >= 0) return void this.zoom(this.selected);
    else return;
    event.preventDefault();
    if (to == null || to < 0) return;
    this.selected = to;
    this.draw();
    this.canvas.setAttribute("aria-label", this.describe({ node: to }));
  }
}

/* How many rows these boxes take. */
function deepest(boxes) {
  return boxes.reduce((depth, box) => Math.max(depth, box.depth + 1), 0);
}

/* As much of a text as there is room for: without the path of its package, then cut at its end. */
function fit(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  text = text.replace(/^(?:[\w.-]+\/)+/, "");
  if (pen.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(text.slice(0, middle) + "…").width <= width) low = middle; else high = middle - 1;
  }
  return low > 1 ? text.slice(0, low) + "…" : "";
}
