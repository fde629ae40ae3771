"use strict";
/* The flame graph: every stack as a column of boxes, as wide as it is heavy. Drawn on a canvas: fifty thousand boxes are too many
 * for a document. */

class Flame {
  constructor(canvas, tip, page) {
    this.canvas = canvas;
    this.tip = tip;
    this.page = page;
    this.row = 18;
    this.zoomed = -1;
    this.selected = -1;
    this.flame = false; // roots above, as an icicle
    canvas.addEventListener("mousemove", event => this.hover(event));
    canvas.addEventListener("mouseleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("click", event => this.zoom(this.at(event)));
    canvas.addEventListener("contextmenu", event => {
      const box = this.at(event);
      if (box) { event.preventDefault(); this.page.choose(this.tree.ids[box.node]); }
    });
    canvas.addEventListener("keydown", event => this.key(event));
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
  }

  /* Another tree, for the next time that it is drawn. */
  show(tree) {
    this.tree = tree;
    this.zoomed = -1;
    this.selected = -1;
  }

  /* Boxes that are wide enough to be seen, by row. */
  layout(width) {
    const { tree } = this;
    const boxes = [];
    const above = [];
    for (let node = this.zoomed; node >= 0; node = tree.parents[node]) above.unshift(node);
    const whole = this.zoomed >= 0 ? tree.weight[this.zoomed] : tree.total;
    if (!whole) return { boxes, depth: 0 };
    above.forEach((node, depth) => boxes.push({ node, x: 0, width, depth, above: depth < above.length - 1 }));
    let depth = above.length;
    let row = [{ nodes: tree.children(this.zoomed), x: 0 }];
    const scale = width / whole;
    while (row.length) {
      const next = [];
      for (const { nodes, x } of row) {
        let left = x;
        for (const node of nodes) {
          const wide = tree.weight[node] * scale;
          // Sorted by weight: the rest is narrower still.
          if (wide < 0.4) break;
          boxes.push({ node, x: left, width: wide, depth });
          const nodes = tree.children(node);
          if (nodes.length) next.push({ nodes, x: left });
          left += wide;
        }
      }
      depth++;
      row = next;
    }
    return { boxes, depth };
  }

  draw() {
    if (!this.tree || this.canvas.parentElement.hidden) return;
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.parentElement.clientWidth;
    const { boxes, depth } = this.layout(width);
    this.boxes = boxes;
    this.depth = Math.max(depth, 1);
    const height = this.depth * this.row;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    this.canvas.style.width = width + "px";
    this.canvas.style.height = height + "px";
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const dark = this.page.isDark();
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--box-ink"), found = style.getPropertyValue("--found"), hot = style.getPropertyValue("--hot");
    const path = new Set(this.tree.hotPath());
    this.lit = 0;
    for (const box of boxes) {
      const { tree } = this;
      const it = tree.model.functions[tree.ids[box.node]];
      const y = this.y(box);
      const is = this.page.isFound(it);
      if (is) this.lit++;
      pen.globalAlpha = box.above ? 0.45 : 1;
      pen.fillStyle = is ? found : colour(it, dark, !tree.marked[box.node]);
      pen.fillRect(box.x, y, Math.max(box.width - 0.6, 0.4), this.row - 1);
      if (path.has(box.node)) {
        pen.fillStyle = hot;
        pen.fillRect(box.x, y + this.row - 3, Math.max(box.width - 0.6, 0.4), 2);
      }
      if (box.node === this.selected) {
        pen.strokeStyle = ink;
        pen.lineWidth = 2;
        pen.strokeRect(box.x + 1, y + 1, Math.max(box.width - 2.6, 1), this.row - 3);
      }
      if (box.width > 28) {
        pen.fillStyle = ink;
        pen.fillText(fit(pen, this.label(box.node), box.width - 8), box.x + 4, y + this.row / 2);
      }
      pen.globalAlpha = 1;
    }
  }

  y(box) {
    return (this.flame ? this.depth - 1 - box.depth : box.depth) * this.row;
  }

  label(node) {
    const name = this.tree.model.functions[this.tree.ids[node]].name;
    const sure = this.tree.gap[node] ? "[...] " : this.tree.unsure[node] ? "~" : "";
    return sure + (this.tree.marked[node] ? name : "(" + name + ")");
  }

  at(event) {
    const area = this.canvas.getBoundingClientRect();
    const x = event.clientX - area.left, y = event.clientY - area.top;
    return (this.boxes || []).find(box => x >= box.x && x < box.x + box.width && y >= this.y(box) && y < this.y(box) + this.row);
  }

  hover(event) {
    const box = this.at(event);
    this.tip.hidden = !box;
    if (!box) return;
    this.tip.textContent = this.describe(box.node);
    const left = Math.min(event.clientX + 14, window.innerWidth - this.tip.offsetWidth - 8);
    this.tip.style.left = Math.max(left, 4) + "px";
    this.tip.style.top = Math.min(event.clientY + 16, window.innerHeight - this.tip.offsetHeight - 8) + "px";
  }

  describe(node) {
    const { tree } = this;
    const it = tree.model.functions[tree.ids[node]];
    const lines = [it.name, it.image + (it.file ? "  " + it.file + (it.line ? ":" + it.line : "") : "")];
    lines.push(this.page.amount(tree.weight[node]) + " here, " + this.page.amount(tree.own[node]) + " of it itself");
    lines.push(this.page.amount(tree.inherited[it.id]) + " in all, " + this.page.amount(tree.self[it.id]) + " itself");
    if (!tree.marked[node]) lines.push("(recursion is folded: it is active again further in)");
    if (tree.gap[node]) lines.push("[...]: recursion was squeezed out here; the function above may not have called this one");
    else if (tree.unsure[node]) lines.push("~: the caller may be another, for what is hidden or merged");
    return lines.join("\n");
  }

  zoom(box) {
    const node = box ? box.node : -1;
    this.zoomed = node === this.zoomed ? this.tree.parents[node] ?? -1 : node;
    this.selected = node;
    this.draw();
    if (node >= 0) this.page.told(this.describe(node));
  }

  /* Arrows walk through the stacks. */
  key(event) {
    const { tree } = this;
    const siblings = tree.children(this.selected < 0 ? -1 : tree.parents[this.selected]);
    const at = siblings.indexOf(this.selected);
    const inwards = this.flame ? "ArrowUp" : "ArrowDown", outwards = this.flame ? "ArrowDown" : "ArrowUp";
    let to = null;
    if (event.key === inwards) to = this.selected < 0 ? tree.children(-1)[0] : tree.children(this.selected)[0];
    else if (event.key === outwards) to = this.selected < 0 ? null : tree.parents[this.selected];
    else if (event.key === "ArrowRight") to = siblings[Math.min(at + 1, siblings.length - 1)];
    else if (event.key === "ArrowLeft") to = siblings[Math.max(at - 1, 0)];
    else if (event.key === "Enter" && this.selected >= 0) return void this.zoom({ node: this.selected });
    else return;
    event.preventDefault();
    if (to == null || to < 0) return;
    this.selected = to;
    this.draw();
    this.page.told(this.describe(to));
  }
}

/* By image: what belongs together looks alike. Unmarked entries are pale. */
function colour(it, dark, pale) {
  const special = it.image.startsWith("[");
  let hash = 0;
  for (const c of it.image) hash = (hash * 31 + c.codePointAt(0)) >>> 0;
  let tone = 0;
  for (const c of it.name) tone = (tone * 33 + c.codePointAt(0)) >>> 0;
  const hue = special && it.image !== "[jit]" ? 215 : (hash * 47) % 300 + 5;
  const light = (dark ? 30 : 74) + (tone % 7) * (dark ? 1.4 : 1.8) + (pale ? (dark ? -9 : 9) : 0);
  return `hsl(${hue} ${special ? 10 : pale ? 25 : 52}% ${light}%)`;
}

function fit(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(text.slice(0, middle) + "…").width <= width) low = middle; else high = middle - 1;
  }
  return low > 1 ? text.slice(0, low) + "…" : "";
}
