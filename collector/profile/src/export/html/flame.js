"use strict";
/* A flame graph: every stack as a column of boxes, as wide as it is heavy, the heaviest first ("left-heavy"), by name, or in the order
 * of time. Drawn on a canvas: fifty thousand boxes are too many for a document. */

const ROW = 20, NARROWEST = 0.5;

/* The least share of the width that can be shown. */
const CLOSEST = 1e-6;
/* In the order of time, calls within so many pixels stand in the order of their weight: a part of time is as wide at least. */
const TIME_WIDTH = 24;

class Flame {
  /* `grows` says whether callees stand above their callers; `zooms` what a click does. Where `looks` is given, a part of the width
   * can be shown: it is told which one. */
  constructor(canvas, page, { grows, zooms, looks }) {
    this.canvas = canvas;
    this.page = page;
    this.grows = grows;
    this.zooms = zooms;
    this.looks = looks;
    this.zoomed = -1;
    this.selected = -1;
    this.part = [0, 1]; // what is shown of the width of what it is zoomed into
    canvas.addEventListener("mousemove", event => this.hover(event));
    canvas.addEventListener("mouseleave", () => { page.tip.hidden = true; });
    canvas.addEventListener("click", event => {
      if (this.dragged) return void (this.dragged = false);
      const box = this.at(event);
      this.zoom(box ? box.node : -1);
    });
    canvas.addEventListener("contextmenu", event => {
      const box = this.at(event);
      if (box && !box.rest) { event.preventDefault(); page.choose(this.tree.ids[box.node]); }
    });
    canvas.addEventListener("keydown", event => this.key(event));
    if (looks) this.listen();
    new ResizeObserver(() => { if (this.width !== canvas.parentElement.clientWidth) this.draw(); }).observe(canvas.parentElement);
  }

  /* The wheel with Ctrl, or two fingers, zooms; sideways, and by dragging, the graph moves. */
  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", event => {
      const [from, to] = this.part, pixels = event.deltaMode ? 16 : 1, sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        const area = canvas.getBoundingClientRect();
        this.magnify(Math.exp(Math.min(Math.max(event.deltaY * pixels, -120), 120) / 200), from + (event.clientX - area.left) / area.width * (to - from));
      } else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY) && to - from < 1) {
        event.preventDefault();
        this.move(sideways * pixels / this.width);
      }
    }, { passive: false });
    let last = null;
    const fingers = new Map();
    const spread = () => { const [a, b] = fingers.values(); return Math.max(Math.abs(a - b), 10); };
    canvas.addEventListener("pointerdown", event => {
      last = event.button ? null : [event.clientX, event.clientY];
      this.dragged = false;
      if (event.pointerType === "touch") fingers.set(event.pointerId, event.clientX);
    });
    canvas.addEventListener("pointermove", event => {
      if (fingers.size === 2 && fingers.has(event.pointerId)) {
        const before = spread(), area = canvas.getBoundingClientRect(), [from, to] = this.part;
        fingers.set(event.pointerId, event.clientX);
        const [a, b] = fingers.values();
        this.dragged = true;
        return this.magnify(before / spread(), from + ((a + b) / 2 - area.left) / area.width * (to - from));
      }
      if (!last || !event.buttons) return;
      const [x, y] = [event.clientX - last[0], event.clientY - last[1]];
      if (!this.dragged && Math.hypot(x, y) < 5) return;
      if (!this.dragged) canvas.setPointerCapture(event.pointerId);
      this.dragged = true;
      last = [event.clientX, event.clientY];
      this.move(-x / this.width);
      if (event.pointerType === "mouse") window.scrollBy(0, -y);
    });
    for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, event => { last = null; fingers.delete(event.pointerId); });
  }

  /* Another tree, for the next time that it is drawn. */
  show(tree) {
    this.tree = tree;
    this.zoomed = -1;
    this.selected = -1;
    this.part = [0, 1];
  }

  /* The function that keys are about. */
  get chosen() {
    const node = this.selected >= 0 ? this.selected : this.zoomed;
    return node >= 0 ? this.tree.ids[node] : -1;
  }

  /* Shows this part of the width, as far as there is one. */
  look(from, to) {
    const span = Math.min(Math.max(to - from, CLOSEST), 1), first = Math.min(Math.max(from, 0), 1 - span);
    this.part = [first, first + span];
    this.looks(...this.part);
  }

  /* By so many widths of what is shown. */
  move(by) {
    const [from, to] = this.part;
    this.look(from + by * (to - from), to + by * (to - from));
  }

  /* Shows `times` as much of the width, around a place in it. */
  magnify(times, at = (this.part[0] + this.part[1]) / 2) {
    const [from, to] = this.part;
    this.look(at - (at - from) * times, at + (to - at) * times);
  }

  ordered(nodes) {
    if (this.page.state.order !== "name") return nodes;
    const { functions } = this.tree.model, name = node => functions[this.tree.ids[node]].shown;
    return nodes.slice().sort((a, b) => (name(a) < name(b) ? -1 : name(a) > name(b) ? 1 : a - b));
  }

  /* Where a node is in the width of the whole graph, from 0 to 1; null in the order of time, where it may be in several places. */
  extent(node) {
    const { tree } = this;
    if (node < 0) return [0, 1];
    if (this.page.state.order === "time" && this.page.timeline.known) return null;
    let before = 0;
    for (let at = node; at >= 0; at = tree.parents[at]) {
      for (const other of this.ordered(tree.children(tree.parents[at]))) {
        if (other === at) break;
        before += tree.weight[other];
      }
    }
    return [before / tree.total, (before + tree.weight[node]) / tree.total];
  }

  /* Boxes that are wide enough to be seen, by row; neighbours that are not are one. */
  layout(width, zoomed = this.zoomed, [from, to] = this.part) {
    const { tree } = this;
    const boxes = [], above = [];
    for (let node = zoomed; node >= 0; node = tree.parents[node]) above.unshift(node);
    const whole = zoomed >= 0 ? tree.weight[zoomed] : tree.total;
    if (!whole) return { boxes, depth: 0 };
    above.forEach((node, depth) => boxes.push({ node, x: 0, width, depth, above: depth < above.length - 1 }));
    let depth = above.length;
    const wide = width / (to - from), scale = wide / whole;
    let row = [{ nodes: tree.children(zoomed), x: -from * wide }];
    if (this.page.state.order === "time" && this.page.timeline.known && tree instanceof Tree) return this.layoutByTime(boxes, depth, width, zoomed, [from, to]);
    while (row.length) {
      const next = [];
      for (const { nodes, x } of row) {
        let left = x, rest = null;
        const close = () => { if (rest && rest.width >= NARROWEST) boxes.push(rest); rest = null; };
        for (const node of this.ordered(nodes)) {
          if (left > width) break;
          const wide = tree.weight[node] * scale;
          if (!wide) continue;
          if (wide < NARROWEST) {
            rest ||= { node, x: left, width: 0, depth, rest: 0, weight: 0 };
            rest.width += wide;
            rest.weight += tree.weight[node];
            rest.rest++;
          } else {
            close();
            if (left + wide > 0) {
              boxes.push({ node, x: left, width: wide, depth });
              const nodes = tree.children(node);
              if (nodes.length) next.push({ nodes, x: left });
            }
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

  /* The same in parts of time, one after the other, each as wide as what was spent in it; a function that goes on from one
   * to the next is one box. */
  layoutByTime(boxes, top, width, zoomed, [from, to]) {
    const { tree } = this, { timeline } = this.page;
    const spent = timeline.spent(tree, zoomed), wide = width / (to - from), scale = wide / spent.total;
    const last = []; // the rightmost box of each row
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
    let left = -from * wide, first = 0, sum = 0;
    for (let column = 0; column < spent.columns.length && left < width; column++) {
      sum += spent.columns[column];
      if (sum * scale < TIME_WIDTH && column < spent.columns.length - 1) continue;
      const weight = left + sum * scale > 0 ? timeline.weights(tree, spent, first, column + 1) : null;
      // By rows, from the left.
      const row = weight ? [[zoomed, left, top]] : [];
      for (let next = 0; next < row.length; next++) {
        const [above, from, depth] = row[next];
        let x = from;
        const nodes = tree.children(above).filter(node => weight[node] > 0);
        // What ran last may go on.
        const before = last[depth], on = before && Math.abs(before.x + before.width - x) < 0.01 ? nodes.indexOf(before.node) : -1;
        if (on > 0) nodes.unshift(...nodes.splice(on, 1));
        for (const node of nodes) {
          const wide = weight[node] * scale;
          put(node, x, wide, depth);
          if (wide >= NARROWEST) row.push([node, x, depth + 1]);
          x += wide;
        }
      }
      left += sum * scale;
      first = column + 1;
      sum = 0;
    }
    const seen = boxes.filter(box => box.width >= NARROWEST && box.x + box.width > 0);
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
      // What begins left of what is shown has its name where it is seen.
      const left = Math.max(box.x, 0), right = Math.min(box.x + box.width, width), seen = right - left;
      const y = this.y(box), wide = Math.max(seen - (box.width > 3 && right < width ? 1 : 0), 0.5);
      const id = tree.ids[box.node], is = !box.rest && page.isFound(id);
      pen.globalAlpha = box.above ? 0.5 : page.isDimmed(id) ? 0.18 : box.rest ? 0.5 : 1;
      pen.fillStyle = is ? found : page.boxColour(tree, box.node);
      pen.fillRect(left, y, wide, ROW - 1);
      if (path.has(box.node) && !box.rest) {
        pen.fillStyle = hot;
        pen.fillRect(left, y + ROW - 3, wide, 2);
      }
      // A dotted edge: the function above may not have called this one.
      if (!box.rest && (tree.gap[box.node] || tree.unsure[box.node]) && wide > 4) {
        pen.fillStyle = ink;
        const edge = this.grows() ? y + ROW - 2 : y;
        for (let x = left + 1; x < left + wide - 1; x += 4) pen.fillRect(x, edge, 1.5, 1);
      }
      if (box.node === this.selected && !box.rest) {
        pen.strokeStyle = ink;
        pen.lineWidth = 2;
        pen.strokeRect(left + 1, y + 1, Math.max(seen - 3, 1), ROW - 3);
      }
      if (seen > 24 && !box.rest) {
        pen.fillStyle = is ? foundInk : ink;
        const text = fit(pen, this.label(box.node), seen - 8);
        pen.fillText(text, left + 4, y + ROW / 2);
        // The share, where there is room for it.
        const end = left + 4 + pen.measureText(text).width + 10;
        if (page.state.order !== "time" && end + 46 < right) {
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
    const { tree } = this, name = tree.model.functions[tree.ids[node]].shown;
    return (tree.gap[node] ? "[...] " : "") + (tree.marked[node] ? name : "(" + name + ")");
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
    const lines = [it.longName.length < 300 ? it.longName : it.name, it.module + (it.file ? "  " + it.file + (it.line ? ":" + it.line : "") : "")];
    lines.push(`here: total ${page.amount(tree.weight[node])}, self ${page.amount(tree.own[node])}`);
    const whole = tree.whole instanceof Tree ? tree.whole : tree;
    lines.push(`everywhere: total ${page.amount(whole.inherited[it.id])}, self ${page.amount(whole.self[it.id])}`);
    if (tree.after) lines.push(page.changeText(tree.after.weight[node], tree.before.weight[node]));
    if (!tree.marked[node]) lines.push("(recursion is folded: it is active again further in)");
    if (tree.gap[node]) lines.push("[...]: recursion was squeezed out here; the function above may not have called this one");
    else if (tree.unsure[node]) lines.push("dotted edge: the caller may be another, for what is hidden or folded between");
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
  // What tells functions without names apart is the address, and not the image.
  const at = text.lastIndexOf("+0x");
  if (at > 0 && /^\+0x[0-9a-f]+\)?$/.test(text.slice(at, at + 24))) text = (text[0] === "(" ? "(" : "") + text.slice(at);
  if (pen.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(text.slice(0, middle) + "…").width <= width) low = middle; else high = middle - 1;
  }
  return low > 1 ? text.slice(0, low) + "…" : "";
}
