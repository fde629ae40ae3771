"use strict";
/* The whole flame graph in little, and what of it is on the screen. A drag shows the part that it marks; within the frame it moves it. */

class Overview {
  constructor(canvas, flame, page) {
    this.canvas = canvas;
    this.flame = flame;
    this.page = page;
    this.key = "";
    this.listen();
    window.addEventListener("scroll", () => this.draw(), { passive: true });
  }

  listen() {
    const { canvas } = this;
    let drag = null;
    const place = event => { const area = canvas.getBoundingClientRect(); return [(event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height]; };
    canvas.addEventListener("pointerdown", event => {
      if (event.button) return;
      const [x] = place(event), [from, to] = this.shown();
      drag = { x, from, to, moves: to - from < 0.999 && x >= from && x <= to, moved: false };
      // A pointer that only a script has cannot be captured.
      try { canvas.setPointerCapture(event.pointerId); } catch { /* then the drag ends at the edge */ }
    });
    canvas.addEventListener("pointermove", event => {
      if (!drag) return;
      const [x] = place(event), by = x - drag.x;
      if (!drag.moved && Math.abs(by) < 0.005) return;
      drag.moved = true;
      if (drag.moves) this.look(drag.from + by, drag.to + by); else this.look(Math.min(x, drag.x), Math.max(x, drag.x));
    });
    canvas.addEventListener("pointerup", event => {
      if (!drag) return;
      const [x, y] = place(event), half = (drag.to - drag.from) / 2, { moved } = drag;
      drag = null;
      if (moved) return;
      if (half < 0.499) this.look(x - half, x + half);
      this.scrollTo(y);
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
  }

  /* The part of the whole width that the flame graph shows. */
  shown() {
    const { flame } = this, extent = flame.extent(flame.zoomed);
    if (!extent) return [0, 1];
    const [from, to] = extent, [first, last] = flame.part;
    return [from + first * (to - from), from + last * (to - from)];
  }

  look(from, to) {
    this.flame.zoomed = this.page.state.zoom = -1;
    this.flame.look(from, to);
  }

  /* Brings the rows at a part of the height into the middle of the window. */
  scrollTo(part) {
    const { flame } = this, rows = flame.grows() ? flame.depth - (1 - part) * this.depth : part * this.depth;
    window.scrollTo(0, window.scrollY + flame.canvas.getBoundingClientRect().top + rows * ROW - window.innerHeight / 2);
  }

  draw() {
    const { canvas, flame, page } = this, { tree } = flame, width = canvas.parentElement.clientWidth;
    if (!tree || page.state.view !== "flame" || !width) return;
    const { order, flip, search, group, absolute } = page.state;
    const key = JSON.stringify([order, flip, search, group, absolute, tree.shownLayer, width, page.isDark]);
    if (key !== this.key || tree !== this.tree) {
      Object.assign(this, { key, tree });
      this.paint(width);
    }
    canvas.hidden = this.rowsInAll < OVERVIEW.fewest;
    if (canvas.hidden) return;
    const ratio = window.devicePixelRatio || 1, pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    canvas.width = width * ratio;
    canvas.height = OVERVIEW.high * ratio;
    canvas.style.height = OVERVIEW.high + "px";
    pen.drawImage(this.picture, 0, 0);
    pen.scale(ratio, ratio);
    const [from, to] = this.shown().map(it => it * width), [top, bottom] = this.rows();
    pen.globalAlpha = 0.75;
    pen.fillStyle = style.getPropertyValue("--ground");
    for (const [x, y, wide, high] of [[0, 0, from, OVERVIEW.high], [to, 0, width - to, OVERVIEW.high], [from, 0, to - from, top], [from, bottom, to - from, OVERVIEW.high - bottom]]) pen.fillRect(x, y, wide, high);
    pen.globalAlpha = 1;
    pen.strokeStyle = style.getPropertyValue("--accent");
    pen.lineWidth = 1;
    pen.strokeRect(from + 0.5, top + 0.5, Math.max(to - from - 1, 1), Math.max(bottom - top - 1, 1));
  }

  /* From which to which height of the overview the rows are that are on the screen. */
  rows() {
    const { flame } = this, area = flame.canvas.getBoundingClientRect(), high = OVERVIEW.high / this.depth;
    const seen = [Math.max(-area.top, 0), Math.min(window.innerHeight - area.top, area.height)].map(it => Math.min(Math.max(it / ROW, 0), flame.depth));
    return seen.map(row => Math.min(Math.max(flame.grows() ? this.depth - flame.depth + row : row, 0), this.depth) * high);
  }

  paint(width) {
    const { flame, page, tree } = this, { boxes, depth } = flame.layout(width, -1, [0, 1]), ratio = window.devicePixelRatio || 1;
    // Rows below the last one that is somewhat filled would leave the rest of the height blank: they stand in the last one.
    const filled = new Float64Array(Math.max(depth, 1));
    for (const box of boxes) filled[box.depth] += box.width;
    this.rowsInAll = depth;
    this.depth = Math.max(filled.findLastIndex(it => it > width * OVERVIEW.filled) + 2, 1);
    this.depth = Math.min(this.depth, Math.max(depth, 1));
    this.picture = document.createElement("canvas");
    this.picture.width = width * ratio;
    this.picture.height = OVERVIEW.high * ratio;
    const pen = this.picture.getContext("2d"), high = OVERVIEW.high / this.depth;
    const found = getComputedStyle(document.documentElement).getPropertyValue("--found");
    pen.scale(ratio, ratio);
    for (const box of boxes) {
      if (box.depth >= this.depth) continue;
      const id = tree.ids[box.node];
      pen.globalAlpha = page.isDimmed(id) ? 0.2 : 1;
      pen.fillStyle = !box.rest && page.isFound(id) ? found : page.boxColour(tree, box.node);
      pen.fillRect(box.x, (flame.grows() ? this.depth - 1 - box.depth : box.depth) * high, box.width, Math.max(high - 0.3, 0.7));
    }
  }
}

/* Pixels, rows of a graph that needs no overview, and how much of the width a row has that is drawn by itself. */
const OVERVIEW = { high: 44, fewest: 16, filled: 0.04 };
