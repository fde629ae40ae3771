"use strict";
/* Search: which functions are meant, how much of the time their stacks take, and from one to the next. */

class Search {
  constructor(page) {
    this.page = page;
    this.found = new Set();
    this.nodes = [];
    this.at = -1;
    element("next").addEventListener("click", () => this.step(1));
    element("previous").addEventListener("click", () => this.step(-1));
    element("search").addEventListener("keydown", event => {
      if (event.key === "Enter") { event.preventDefault(); this.step(event.shiftKey ? -1 : 1); }
    });
  }

  /* Finds what the state asks for in a tree. */
  find(tree) {
    const text = this.page.state.search, { model } = tree;
    this.found = new Set();
    this.nodes = [];
    this.at = -1;
    let problem = "", weight = 0;
    if (text) {
      try {
        const pattern = new Pattern(text);
        if (pattern.isOfThreads) weight = this.ofThreads(tree, pattern.threads(model.threads));
        else {
          this.found = new Set(pattern.functions(model.functions));
          ({ weight, nodes: this.nodes } = tree.matched(this.found));
        }
        if (!weight) problem = "no match";
      } catch (error) { problem = error.message; }
    }
    this.matched = text && !problem ? `matched ${percent(weight, tree.total)}` : "";
    element("search").classList.toggle("wrong", !!problem);
    element("search").setAttribute("aria-invalid", !!problem);
    this.problem = problem;
    this.say();
  }

  /* What these threads spent of what a tree shows. */
  ofThreads(tree, ids) {
    const { model } = tree, wanted = new Uint8Array(model.threads.length);
    for (const id of ids) wanted[id] = tree.threads && !tree.threads[id] ? 0 : 1;
    const own = model.cells.sums(model.count, tree.shownLayer, wanted, tree.range);
    return own.reduce((sum, weight, node) => sum + (tree.counts[node] === 1 ? weight : 0), 0);
  }

  say() {
    const of = this.nodes.length ? `, ${this.at < 0 ? this.nodes.length + (this.nodes.length === 1 ? " place" : " places") : `${this.at + 1} of ${this.nodes.length}`}` : "";
    const status = element("matched");
    status.textContent = this.problem || this.matched + of;
    status.classList.toggle("problem", !!this.problem);
    this.page.fillReset();
    element("next").disabled = element("previous").disabled = !this.nodes.length;
  }

  /* To the next place, or the one before; round and round. */
  step(by) {
    const count = this.nodes.length;
    if (!count) return;
    this.at = this.at < 0 ? (by > 0 ? 0 : count - 1) : (this.at + by + count) % count;
    this.say();
    this.page.show(this.nodes[this.at]);
  }
}
