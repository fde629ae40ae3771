"use strict";
/* The numbers: a tree of stacks, what a question leaves of it, and sums over that. Nothing here knows of the page.
 *
 * A stack is the path from a root of the tree to a node; `weight` is what was spent in exactly that stack. Entries in
 * parentheses ("unmarked") are earlier activations of a function that has been entered again further down: recursion is
 * folded, and they are kept only where they are the true caller or callee of a neighbour. */

class Model {
  constructor(data) {
    this.data = data;
    this.functions = data.functions.map(([name, image, file, line], id) => ({
      id, name, image: data.images[image] || "", file, line,
    }));
    const count = data.parents.length;
    this.parents = data.parents;
    this.entries = data.entries; // function * 2 + (1 if marked)
    const flags = nodes => { const set = new Uint8Array(count); for (const node of nodes) set[node] = 1; return set; };
    this.gaps = flags(data.gaps); // the parent may not have called this one: recursion was squeezed out between them
    this.unsure = flags(data.unsure); // the call may be another, because functions are hidden or merged
    this.weights = data.weights; // of all the time, or of the part of it that is asked for
    this.count = count;
  }

  /* The tree that a question leaves: {hide, only, focus, ignore: lists of patterns; startup: whether functions that only start
   * the program are shown}. What a hidden function spent itself counts for
   * its nearest visible caller; stacks without a focussed function, or with an ignored one, do not count. */
  ask(question) {
    const sets = {};
    const unmatched = [];
    for (const kind of ["hide", "only", "focus", "ignore"]) {
      const patterns = question[kind] || [];
      if (!patterns.length) continue;
      const set = new Uint8Array(this.functions.length);
      for (const text of patterns) {
        const found = this.matching(text);
        if (!found.length) unmatched.push(text);
        for (const id of found) set[id] = 1;
      }
      sets[kind] = set;
    }
    const hidden = new Uint8Array(this.functions.length);
    for (let id = 0; id < hidden.length; id++) hidden[id] = (sets.hide && sets.hide[id]) || (sets.only && !sets.only[id]) ? 1 : 0;
    const folds = !question.startup && this.data.startup.length > 0;
    if (folds) for (const id of this.data.startup) hidden[id] = 1;
    const hides = !!(sets.hide || sets.only) || folds;
    const tree = new Tree(this);
    const count = this.count;
    const place = new Int32Array(count); // node here -> node there
    const counts = new Uint8Array(count); // 1: focussed, 2: ignored
    const missing = new Uint8Array(count); // hidden, and what was squeezed out there may be shown
    let total = 0, outside = 0;
    for (let node = 0; node < count; node++) {
      const parent = this.parents[node], entry = this.entries[node], id = entry >> 1;
      let at = parent < 0 ? -1 : place[parent];
      // Nothing is hidden: then no two nodes become one.
      const gap = this.gaps[node] | (parent < 0 ? 0 : missing[parent]);
      if (!hides) at = tree.add(at, id, entry & 1, gap, this.unsure[node]);
      else if (!hidden[id]) at = tree.child(at, id, entry & 1, gap, gap | this.unsure[node]);
      else missing[node] = gap | (entry & 1 ? 0 : 1);
      place[node] = at;
      const above = parent < 0 ? 0 : counts[parent];
      counts[node] = above | (!sets.focus || sets.focus[id] ? 1 : 0) | (sets.ignore && sets.ignore[id] ? 2 : 0);
      const weight = this.weights[node];
      if (!weight) continue;
      if (counts[node] !== 1) { outside += weight; continue; }
      total += weight;
      // Everything hidden: it is nobody's.
      tree.own[at < 0 ? tree.child(-1, this.rootFunction(), 1, 0, 0) : at] += weight;
    }
    tree.place = place;
    tree.counts = counts;
    tree.finish(total, outside, unmatched);
    return tree;
  }

  /* [root], which stands for stacks of hidden functions alone. */
  rootFunction() {
    return 1;
  }

  /* Functions that a pattern means: [name:|module:|file:]TEXT, a glob where it has * or ?, /an expression/, else a name,
   * or a part of names where there is no such name. */
  matching(text) {
    const [, subject, what] = /^(?:(name|module|file):(?!:))?([^]*)$/.exec(text);
    if (!what) return [];
    let test, plain = false;
    if (what.length > 1 && what.startsWith("/") && what.endsWith("/")) {
      try {
        const regex = new RegExp(what.slice(1, -1), "u");
        test = it => regex.test(it);
      } catch { return []; }
    } else if (/[*?]/.test(what)) {
      const regex = new RegExp("^" + what.replace(/[.+^${}()|[\]\\/]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".") + "$", "s");
      test = it => regex.test(it);
    } else {
      test = it => it === what;
      plain = true;
    }
    const base = path => path.slice(path.lastIndexOf("/") + 1);
    const path = it => it != null && (test(it) || test(base(it)) || (plain && it.endsWith("/" + what)));
    const found = this.functions.filter(it =>
      subject === "module" ? path(it.image) : subject === "file" ? path(it.file) : test(it.name));
    if (found.length || !plain || (subject && subject !== "name")) return found.map(it => it.id);
    return this.functions.filter(it => it.name.includes(what)).map(it => it.id);
  }
}

/* What is left of the stacks, as a tree; and sums over it. Callers come before callees. */
class Tree {
  constructor(model) {
    this.model = model;
    const most = model.count + 1; // and [root]
    this.count = 0;
    this.parents = new Int32Array(most);
    this.ids = new Int32Array(most);
    this.marked = new Uint8Array(most);
    this.gap = new Uint8Array(most);
    this.unsure = new Uint8Array(most);
    this.own = new Float64Array(most);
    this.index = new Map();
  }

  add(parent, id, marked, gap, unsure) {
    const node = this.count++;
    this.parents[node] = parent;
    this.ids[node] = id;
    this.marked[node] = marked;
    this.gap[node] = gap;
    this.unsure[node] = unsure;
    return node;
  }

  child(parent, id, marked, gap, unsure) {
    // Hiding what was between makes neighbours of equal functions: one entry, marked if either is.
    if (parent >= 0 && this.ids[parent] === id) {
      // Who called the latest activation is not known where something may be missing between the two.
      if (unsure || (marked && !this.marked[parent])) this.unsure[parent] = 1;
      if (marked) this.marked[parent] = 1;
      return parent;
    }
    // Unique below 2^53: as many functions and nodes as a page can have.
    const key = ((parent + 1) * this.model.functions.length + id) * 4 + marked * 2 + gap;
    let node = this.index.get(key);
    if (node === undefined) this.index.set(key, node = this.add(parent, id, marked, gap, unsure));
    if (unsure) this.unsure[node] = 1;
    return node;
  }

  finish(total, outside, unmatched) {
    this.index = null;
    this.total = total;
    this.outside = outside;
    this.unmatched = unmatched;
    const { count, parents } = this;
    this.weight = this.own.slice(0, count);
    for (let node = count - 1; node >= 0; node--) {
      if (parents[node] >= 0) this.weight[parents[node]] += this.weight[node];
    }
    // The callees of each node, one after the other: of node n from begins[n + 1] to begins[n + 2], the roots from 0.
    this.begins = new Int32Array(count + 2);
    for (let node = 0; node < count; node++) if (this.weight[node]) this.begins[parents[node] + 2]++;
    for (let at = 1; at < count + 2; at++) this.begins[at] += this.begins[at - 1];
    const next = this.begins.slice();
    this.lists = new Int32Array(this.begins[count + 1]);
    for (let node = 0; node < count; node++) if (this.weight[node]) this.lists[next[parents[node] + 1]++] = node;
    this.sorted = new Map();
    this.sum();
  }

  /* The callees of a node, the heaviest first; of -1 the roots. */
  children(node) {
    let list = this.sorted.get(node);
    if (!list) {
      list = Array.from(this.lists.subarray(this.begins[node + 1], this.begins[node + 2]));
      list.sort((a, b) => this.weight[b] - this.weight[a] || a - b);
      this.sorted.set(node, list);
    }
    return list;
  }

  /* Self and inherited of every function; a function that is on a stack twice counts once. */
  sum() {
    const functions = this.model.functions.length, { parents, ids } = this;
    this.self = new Float64Array(functions);
    this.inherited = new Float64Array(functions);
    for (let node = 0; node < this.count; node++) {
      if (!this.weight[node]) continue;
      const id = ids[node];
      this.self[id] += this.own[node];
      let above = parents[node];
      while (above >= 0 && ids[above] !== id) above = parents[above];
      if (above < 0) this.inherited[id] += this.weight[node];
    }
  }

  /* Rows of the flat profile. */
  flat() {
    const rows = [];
    for (const it of this.model.functions) {
      if (this.inherited[it.id] > 0) rows.push({ function: it, self: this.self[it.id], inherited: this.inherited[it.id] });
    }
    return rows;
  }

  /* Arcs as the graph view has them: of a marked entry, from its caller ("in") and to its callee ("out"). Only those between
   * functions that `wanted` holds; all of them are as many as nodes. */
  arcs(wanted) {
    const functions = this.model.functions.length;
    const sums = { in: new Map(), out: new Map() };
    const add = (map, from, to, node) => {
      const key = from * functions + to;
      let sum = map.get(key);
      if (!sum) map.set(key, sum = { from, to, weight: 0, unsure: false });
      sum.weight += this.weight[node];
      if (this.gap[node] || this.unsure[node]) sum.unsure = true;
    };
    for (let node = 0; node < this.count; node++) {
      const parent = this.parents[node];
      if (parent < 0 || !this.weight[node]) continue;
      const from = this.ids[parent], to = this.ids[node];
      if (!wanted(from, to)) continue;
      if (this.marked[node]) add(sums.in, from, to, node);
      if (this.marked[parent]) add(sums.out, from, to, node);
    }
    return { in: Array.from(sums.in.values()), out: Array.from(sums.out.values()) };
  }

  /* A function between its callers and its callees. */
  butterfly(id) {
    const arcs = this.arcs((from, to) => from === id || to === id);
    const heavier = (a, b) => b.weight - a.weight;
    return {
      callers: arcs.in.filter(arc => arc.to === id).sort(heavier),
      callees: arcs.out.filter(arc => arc.from === id).sort(heavier),
    };
  }

  /* The most expensive arm: from the heaviest root on to the heaviest callee, as long as that is not less than what its caller spent itself. */
  hotPath() {
    const path = [];
    let choice = this.children(-1), own = 0;
    while (choice.length && this.weight[choice[0]] >= own && this.weight[choice[0]] > 0) {
      const node = choice[0];
      path.push(node);
      own = this.own[node];
      choice = this.children(node);
    }
    return path;
  }
}
