"use strict";
/* The numbers: a tree of stacks, what a question leaves of it, and sums over that. Nothing here knows of the page.
 *
 * A stack is the path from a root of the tree to a node. What was spent in exactly that stack is in cells, by thread and column
 * of time. Entries in parentheses ("unmarked") are earlier activations of a function that has been entered again further down:
 * recursion is folded, and they are kept only where they are the true caller or callee of a neighbour.
 *
 * A layer is one set of weights over the same stacks: a metric, or one of two profiles, of which 0 is the one after. */

const ROOT_FUNCTION = 1; // [root], which stands for stacks of hidden functions alone

class Model {
  constructor(data) {
    // As the profile has it; a number is where in the name begins what tells it from others.
    const full = (name, id) => (typeof data.full_names[id] === "number" ? name.slice(0, data.full_names[id]) : data.full_names[id]);
    this.functions = data.functions.map(([name, image, file, line], id) => ({
      id, name, shown: Model.shown(name, data.modules[id]), module: data.modules[id] ?? data.images[image][0], fullName: full(name, id), longName: typeof data.full_names[id] === "string" ? data.full_names[id] : name, image: data.images[image][0], path: data.images[image][1],
      file: file < 0 ? null : data.files[file], line,
    }));
    this.startup = data.startup;
    // Where Python functions have names, the interpreter is another layer below each of them.
    this.isPython = this.functions.some(it => it.name.startsWith("py::"));
    this.interpreter = this.isPython ? this.functions.filter(it => /^(lib)?python/.test(it.image)).map(it => it.id) : [];
    this.layers = data.layers;
    this.isDifference = data.difference;
    this.significant = data.significant.map(ids => new Set(ids));
    this.entries = unpack(data.entries); // function * 2 + (1 if marked)
    this.count = this.entries.length;
    this.parents = this.parentsOf(unpack(data.depths));
    this.gaps = this.flags(data.gaps); // the parent may not have called this one: recursion was squeezed out between them
    this.unsure = this.flags(data.unsure); // the call may be another, because functions are hidden or merged
    this.groups = data.cells.groups; // what processes belong to: unit, container, user
    const processes = data.cells.processes.map(([name, pid, group], id) => ({ id, name, pid, group: group === null ? null : this.groups[group] }));
    this.processes = processes;
    this.threads = data.cells.threads.map(([name, tid, process], id) => ({ id, name, tid, process: processes[process] }));
    this.cells = new Cells(data.cells);
    this.whole = this.layers.map((_, layer) => this.cells.sums(this.count, layer, null, null));
  }

  /* What a function is called on the page: of Python's the name, and behind it the package. */
  static shown(name, module) {
    const [, function_] = /^py::(.*?):[^:]*$/.exec(name) || [];
    return function_ === undefined || !module ? name : `${function_} (${module})`;
  }

  /* Nodes come in order of depth first: a node is called by the nearest one before it that is less deep. */
  parentsOf(depths) {
    const parents = new Int32Array(this.count), path = [];
    for (let node = 0; node < this.count; node++) {
      const depth = depths[node];
      parents[node] = depth ? path[depth - 1] : -1;
      path[depth] = node;
    }
    return parents;
  }

  flags(packed) {
    const set = new Uint8Array(this.count);
    for (const node of unpackAscending(packed)) set[node] = 1;
    return set;
  }

  /* The tree that a question leaves: {only, hide, focus, ignore: lists of patterns; startup, interpreter: whether
   * functions that only start the program, and those of an interpreter, are shown; range: columns of time from [0] up
   * to [1], or null}. The self weight of a hidden function counts for its nearest visible caller. Stacks without a
   * focussed function, or with an ignored one, do not count. */
  ask(question) {
    const tree = new Tree(this);
    const { sets, threads } = this.understand(question, tree.problems);
    // 1: hidden by the question, 2: folded by the page.
    const hidden = new Uint8Array(this.functions.length);
    for (let id = 0; id < hidden.length; id++) hidden[id] = (sets.hide && sets.hide[id]) || (sets.only && !sets.only[id]) ? 1 : 0;
    const folded = [...(question.startup ? [] : this.startup), ...(question.interpreter ? [] : this.interpreter)];
    for (const id of folded) hidden[id] ||= 2;
    const hides = !!(sets.hide || sets.only) || folded.length > 0;
    const { count, parents, entries, gaps, unsure } = this;
    const place = new Int32Array(count); // node here -> node there
    const counts = new Uint8Array(count); // 1: focussed, 2: ignored
    // Hidden, and what was squeezed out there may be shown: 1. Where the page folds, that makes a call uncertain, but is no gap: 2.
    const missing = new Uint8Array(count);
    for (let node = 0; node < count; node++) {
      const parent = parents[node], entry = entries[node], id = entry >> 1;
      let at = parent < 0 ? -1 : place[parent];
      const above = parent < 0 ? 0 : missing[parent], isFolded = hidden[id] === 2 || (parent >= 0 && hidden[entries[parent] >> 1] === 2);
      const lacks = above | (gaps[node] ? (isFolded ? 2 : 1) : 0), gap = lacks & 1;
      // Nothing is hidden: then no two nodes become one.
      if (!hides) at = tree.add(at, id, entry & 1, gap, unsure[node]);
      else if (!hidden[id]) at = tree.child(at, id, entry & 1, gap, lacks || unsure[node] ? 1 : 0);
      else missing[node] = lacks | (entry & 1 ? 0 : hidden[id]);
      if (at >= 0 && tree.origin[at] < 0) tree.origin[at] = node;
      place[node] = at;
      counts[node] = (parent < 0 ? 0 : counts[parent]) | (!sets.focus || sets.focus[id] ? 1 : 0) | (sets.ignore && sets.ignore[id] ? 2 : 0);
    }
    // A stack whose functions are all hidden counts for [root].
    const nobody = place.includes(-1) ? tree.child(-1, ROOT_FUNCTION, 1, 0, 0) : -1;
    if (nobody >= 0) for (let node = 0; node < count; node++) if (place[node] < 0) place[node] = nobody;
    tree.index = null;
    tree.place = place;
    tree.counts = counts;
    tree.threads = threads;
    tree.range = question.range || null;
    tree.isAsked = Object.keys(sets).length > 0 || !!threads || !!tree.range;
    return tree;
  }

  /* Functions, by kind of pattern, and threads that a question means. What cannot be understood is a problem and asks nothing. */
  understand(question, problems) {
    const sets = {};
    let threads = null;
    const among = ids => { const set = new Uint8Array(this.threads.length); for (const id of ids) set[id] = 1; return set; };
    for (const kind of ["only", "hide", "focus", "ignore"]) {
      let focussed = null, ignored = null;
      for (const text of question[kind] || []) {
        let pattern;
        try {
          pattern = new Pattern(text);
        } catch (error) { problems.push({ kind, message: error.message }); continue; }
        const ofThreads = pattern.isOfThreads;
        if (ofThreads && kind !== "focus" && kind !== "ignore") {
          problems.push({ kind, message: `${text} names no function: who runs is focussed or ignored` });
          continue;
        }
        const found = ofThreads ? pattern.threads(this.threads) : pattern.functions(this.functions);
        if (!found.length) problems.push({ kind, message: `nothing is called ${text}` });
        if (ofThreads) {
          const list = kind === "focus" ? focussed ||= [] : ignored ||= [];
          list.push(...found);
          continue;
        }
        const set = sets[kind] ||= new Uint8Array(this.functions.length);
        for (const id of found) set[id] = 1;
      }
      if (focussed) { const set = among(focussed); threads = threads ? threads.map((is, i) => is & set[i]) : set; }
      // A page whose threads were left out cannot ignore any.
      if (ignored && this.threads.length) { const set = among(ignored); threads = (threads || among(this.threads.map(it => it.id))).map((is, i) => is & (1 - set[i])); }
    }
    return { sets, threads };
  }
}

/* What was spent in each stack by each thread in each column of time, layer by layer. */
class Cells {
  constructor(data) {
    this.starts = data.starts;
    this.ends = data.ends;
    this.columns = Math.max(data.starts.length, 1);
    const threads = Math.max(data.threads.length, 1);
    const keys = unpackAscending(data.steps), count = keys.length;
    this.node = new Int32Array(count);
    this.thread = new Int32Array(count);
    this.column = new Int32Array(count);
    for (let i = 0; i < count; i++) {
      const row = Math.floor(keys[i] / this.columns);
      this.column[i] = keys[i] % this.columns;
      this.node[i] = Math.floor(row / threads);
      this.thread[i] = row % threads;
    }
    this.layers = data.layers.map(({ unit, weights }) => unpack(weights).map(it => it * unit));
  }

  /* What was spent in exactly each of so many stacks, by these threads in these columns. */
  sums(nodes, layer, threads, range) {
    const sums = new Float64Array(nodes), weights = this.layers[layer], { node, thread, column } = this;
    const first = range ? range[0] : 0, end = range ? range[1] : this.columns;
    for (let i = 0; i < weights.length; i++) {
      if (column[i] >= first && column[i] < end && (!threads || threads[thread[i]])) sums[node[i]] += weights[i];
    }
    return sums;
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
    this.origin = new Int32Array(most).fill(-1); // the first node of the model that is here
    this.index = new Map();
    this.problems = [];
    this.sums = [];
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

  /* Own weight and weight of each node, self and inherited of each function, and the total, by a layer. */
  layer(layer) {
    if (this.sums[layer]) return this.sums[layer];
    const { model, place, counts, count, parents } = this;
    const restricted = this.threads || this.range;
    const weights = restricted ? model.cells.sums(model.count, layer, this.threads, this.range) : model.whole[layer];
    const own = new Float64Array(count);
    let total = 0;
    for (let node = 0; node < model.count; node++) {
      if (counts[node] !== 1 || !weights[node]) continue;
      own[place[node]] += weights[node];
      total += weights[node];
    }
    const weight = own.slice();
    for (let node = count - 1; node >= 0; node--) if (parents[node] >= 0) weight[parents[node]] += weight[node];
    const whole = model.whole[layer].reduce((sum, it) => sum + it, 0);
    const sums = { own, weight, total, whole, ...this.functionSums(own, weight) };
    return this.sums[layer] = sums;
  }

  /* Self and inherited of every function; a function that is on a stack twice counts once. */
  functionSums(own, weight) {
    const functions = this.model.functions.length, { parents, ids } = this;
    const self = new Float64Array(functions), inherited = new Float64Array(functions);
    for (let node = 0; node < this.count; node++) {
      if (!weight[node]) continue;
      const id = ids[node];
      self[id] += own[node];
      let above = parents[node];
      while (above >= 0 && ids[above] !== id) above = parents[above];
      if (above < 0) inherited[id] += weight[node];
    }
    return { self, inherited };
  }

  /* Chooses the layer that is shown. A difference keeps the other one beside it. */
  use(layer) {
    const { own, weight, total, self, inherited, whole } = this.layer(layer);
    Object.assign(this, { shownLayer: layer, own, weight, total, self, inherited, whole });
    this.after = this.model.isDifference ? this.layer(0) : null;
    this.before = this.model.isDifference ? this.layer(1) : null;
    const { count, parents } = this;
    const seen = node => weight[node] || (this.after && (this.after.weight[node] || this.before.weight[node]));
    // The callees of each node, one after the other: of node n from begins[n + 1] to begins[n + 2], the roots from 0.
    this.begins = new Int32Array(count + 2);
    for (let node = 0; node < count; node++) if (seen(node)) this.begins[parents[node] + 2]++;
    for (let at = 1; at < count + 2; at++) this.begins[at] += this.begins[at - 1];
    const next = this.begins.slice();
    this.lists = new Int32Array(this.begins[count + 1]);
    for (let node = 0; node < count; node++) if (seen(node)) this.lists[next[parents[node] + 1]++] = node;
    this.sorted = new Map();
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

  /* Rows of the flat profile. */
  flat() {
    const rows = [], { after, before } = this;
    for (const it of this.model.functions) {
      const seen = after ? after.inherited[it.id] || before.inherited[it.id] : this.inherited[it.id];
      if (seen) rows.push({ function: it, self: this.self[it.id], inherited: this.inherited[it.id] });
    }
    return rows;
  }

  /* Weight of the stacks that hold one of these functions, each once, and the outermost of them, the heaviest first. */
  matched(ids) {
    const inside = new Uint8Array(this.count), nodes = [];
    let weight = 0;
    for (let node = 0; node < this.count; node++) {
      const parent = this.parents[node], above = parent >= 0 && inside[parent];
      inside[node] = above || ids.has(this.ids[node]) ? 1 : 0;
      if (inside[node] && !above && this.weight[node]) {
        weight += this.weight[node];
        nodes.push(node);
      }
    }
    nodes.sort((a, b) => this.weight[b] - this.weight[a] || a - b);
    return { weight, nodes };
  }

  /* Arcs as the graph view has them: of a marked entry, from its caller ("in") and to its callee ("out"). Only those between
   * functions that `wanted` holds; all of them are as many as nodes. */
  arcs(wanted) {
    const functions = this.model.functions.length;
    const sums = { in: new Map(), out: new Map() };
    const { after, before } = this;
    const add = (map, from, to, node) => {
      const key = from * functions + to;
      let sum = map.get(key);
      if (!sum) map.set(key, sum = { from, to, weight: 0, after: 0, before: 0, unsure: false });
      sum.weight += this.weight[node];
      if (after) { sum.after += after.weight[node]; sum.before += before.weight[node]; }
      if (this.gap[node] || this.unsure[node]) sum.unsure = true;
    };
    for (let node = 0; node < this.count; node++) {
      const parent = this.parents[node];
      if (parent < 0 || (!this.weight[node] && !after)) continue;
      const from = this.ids[parent], to = this.ids[node];
      if (!wanted(from, to)) continue;
      if (this.marked[node]) add(sums.in, from, to, node);
      if (this.marked[parent]) add(sums.out, from, to, node);
    }
    return { in: Array.from(sums.in.values()), out: Array.from(sums.out.values()) };
  }

  /* Calls between some functions through others only: from the nearest caller that `wanted` has, where it is not the direct one. */
  indirect(wanted) {
    const functions = this.model.functions.length, sums = new Map();
    const nearest = new Int32Array(this.count); // the nearest wanted caller of each node, -1 for none
    for (let node = 0; node < this.count; node++) {
      const parent = this.parents[node];
      nearest[node] = parent < 0 ? -1 : wanted[this.ids[parent]] ? parent : nearest[parent];
      const above = nearest[node];
      if (above < 0 || above === parent || !this.weight[node] || !wanted[this.ids[node]] || !this.marked[node]) continue;
      const from = this.ids[above], to = this.ids[node], key = from * functions + to;
      if (from === to) continue;
      let sum = sums.get(key);
      if (!sum) sums.set(key, sum = { from, to, weight: 0 });
      sum.weight += this.weight[node];
    }
    return Array.from(sums.values());
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

  /* The chains of callers of a function's latest activations, joined where they are alike: a tree that grows upwards. */
  callersOf(id) {
    const chains = new Chains(this);
    for (let node = 0; node < this.count; node++) {
      if (this.ids[node] !== id || !this.marked[node] || !this.weight[node]) continue;
      const weight = this.weight[node];
      let at = chains.root(id, weight), from = node;
      for (let above = this.parents[node]; above >= 0; above = this.parents[above]) {
        at = chains.add(at, this.ids[above], this.marked[above], this.gap[from], this.unsure[from], weight);
        from = above;
      }
      chains.own[at] += weight;
    }
    return chains;
  }

  /* The chains that a function's latest activations called, joined. */
  calleesOf(id) {
    const chains = new Chains(this), place = new Int32Array(this.count).fill(-1);
    for (let node = 0; node < this.count; node++) {
      const weight = this.weight[node], parent = this.parents[node];
      if (!weight) continue;
      if (this.ids[node] === id && this.marked[node]) place[node] = chains.root(id, weight);
      else if (parent >= 0 && place[parent] >= 0) {
        place[node] = chains.add(place[parent], this.ids[node], this.marked[node], this.gap[node], this.unsure[node], weight);
      } else continue;
      chains.own[place[node]] += this.own[node];
    }
    return chains;
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

/* A tree of chains that begin with one function: what a flame graph of its callers or callees is drawn from. */
class Chains {
  constructor(tree) {
    this.model = tree.model;
    this.whole = tree;
    this.parents = [];
    this.ids = [];
    this.marked = [];
    this.gap = [];
    this.unsure = [];
    this.weight = [];
    this.own = [];
    this.lists = new Map([[-1, []]]);
    this.index = new Map();
    this.total = 0;
  }

  root(id, weight) {
    this.total += weight;
    return this.add(-1, id, 1, 0, 0, weight);
  }

  add(parent, id, marked, gap, unsure, weight) {
    const key = ((parent + 1) * this.model.functions.length + id) * 4 + (marked ? 2 : 0) + (gap ? 1 : 0);
    let node = this.index.get(key);
    if (node === undefined) {
      this.index.set(key, node = this.ids.length);
      this.parents.push(parent);
      this.ids.push(id);
      this.marked.push(marked);
      this.gap.push(gap);
      this.unsure.push(0);
      this.weight.push(0);
      this.own.push(0);
      this.lists.set(node, []);
      this.lists.get(parent).push(node);
    }
    if (unsure) this.unsure[node] = 1;
    this.weight[node] += weight;
    return node;
  }

  children(node) {
    return this.lists.get(node).sort((a, b) => this.weight[b] - this.weight[a] || a - b);
  }

  hotPath() {
    return [];
  }
}
