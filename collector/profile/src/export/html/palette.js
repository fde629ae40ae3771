"use strict";
/* Colours with a meaning: the hue is the package that a function belongs to, the heaviest packages each with one of their own.
 * The program's own code is saturated, libraries are muted, the kernel and generated code have colours of their own. In the
 * difference of two profiles the colour is the growth instead.
 *
 * The hues are Paul Tol's "light" scheme, which is made to be told apart by the colour-blind and to be written upon. */

const OWN_HUES = ["#77aadd", "#ee8866", "#44bb99", "#eedd88", "#ffaabb", "#bbcc33", "#99ddff", "#aaaa00"];
const OTHER_OWN = "#a9bccb", KERNEL = "#b9a3d6", GENERATED = "#d6bf9a", NEUTRAL = "#e4e6e8";
const LIBRARY_GREY = "#c4c9ce";
const LIBRARY_COLOURS = 5;

/* What a function's code is, and its package: [kind, name]. */
function packageOf(it, isPython) {
  const { image, name } = it;
  if (image === "[ccsd]") return ["none", "ccsd's marks"];
  const python = /^py::.*:([^:]*)$/.exec(it.fullName || name);
  if (python) return [/^<frozen|^__init__\.py$|\/lib\//.test(python[1]) ? "library" : "own", python[1].replace(/^.*\//, "")];
  if (image === "[kernel]" || image === "[vdso]" || image.endsWith(".ko") || (image.startsWith("[") && image.endsWith("]") && image.includes("kernel"))) return ["kernel", "kernel"];
  if (image === "[jit]" || image === "[anon]" || image.startsWith("[")) {
    const java = /^L?([\w$]+(?:[./][\w$]+)+)[;:.]/.exec(name);
    return java ? ["own", java[1].split(/[./]/).slice(0, 2).join(".")] : ["generated", "generated code"];
  }
  if (/\.so(\.|$)/.test(image)) return ["library", image];
  // A standard library that is linked in, or compiled as a part of the program, is a library.
  const standard = /^(?:<?(std|core|alloc)::|(runtime|fmt|sort|strings|bytes|sync|time|net|os|io|bufio|strconv|reflect|syscall)[./])/.exec(name);
  if (standard) return ["library", standard[1] ? standard[1] + "::" : standard[2]];
  if (isPython) return ["library", image];
  return ["own", image];
}

/* A part of a program: its namespace, Go's or Rust's package, the file or directory that it is written in, or the first
 * word of its name. */
function partOf(it) {
  const { name } = it;
  const plain = name.replace(/^(?:virtual thunk to |non-virtual thunk to )/, "");
  if (plain.startsWith("py::")) return null;
  const go = /^((?:[\w.-]+\/)*[\w-]+)\.(?:\(?\*?[\w\[\]]+\)?\.)?[\w]+/.exec(plain);
  if (go && (plain.includes("/") || /^(main|runtime|fmt|sort|strings|bytes|sync|time|net|os|io|bufio|strconv|reflect)\./.test(plain))) return go[1];
  const scoped = /^<?(?:impl )?&?([A-Za-z_][\w$]*)::/.exec(plain);
  if (scoped) return scoped[1] + "::";
  if (it.file) return it.file.slice(it.file.lastIndexOf("/") + 1);
  // Of a function without a name its address is known: what is written together is linked together.
  const address = /^(.*)\+0x([0-9a-f]+)$/.exec(plain);
  if (address) return `${address[1]}+0x${address[2].slice(0, -5) || "0"}…`;
  const word = /^_*([A-Za-z][A-Za-z0-9]{1,})_/.exec(plain);
  return word ? word[1] + "_*" : null;
}

class Palette {
  constructor(model) {
    this.model = model;
    this.mixed = new Map(); // colours by function, theme and paleness
    const { areas, selves } = Palette.weights(model);
    const area = areas.reduce((sum, it) => sum + it, 0) || 1, whole = selves.reduce((sum, it) => sum + it, 0) || 1;
    const first = model.functions.map(it => packageOf(it, model.isPython));
    // A part of the program that takes more than 1/200 of the flame graph is a package of its own.
    const parts = new Map();
    const partsOf = model.functions.map((it, id) => {
      const part = first[id][0] === "own" ? partOf(it) : null;
      if (part) parts.set(part, (parts.get(part) || 0) + areas[id]);
      return part;
    });
    const groups = new Map();
    this.of = model.functions.map((_, id) => {
      const [kind, image] = first[id], part = partsOf[id];
      const name = part && parts.get(part) > area / 200 ? part : image, key = kind + " " + name;
      if (!groups.has(key)) groups.set(key, { kind, name, area: 0, weight: 0 });
      const group = groups.get(key);
      group.area += areas[id];
      group.weight += selves[id];
      return group;
    });
    this.groups = [];
    this.colours(Array.from(groups.values()), whole);
  }

  /* How much of the flame graph each function takes, and its self weight. The trunk, which is wide and does little, counts as no
   * more than a branch. */
  static weights(model) {
    const most = model.whole[0].reduce((sum, it) => sum + it, 0) / 50;
    const own = model.whole[0], weight = own.slice(), { parents, entries } = model;
    const areas = new Float64Array(model.functions.length), selves = new Float64Array(model.functions.length);
    for (let node = model.count - 1; node >= 0; node--) {
      areas[entries[node] >> 1] += Math.min(weight[node], most);
      selves[entries[node] >> 1] += own[node];
      if (parents[node] >= 0) weight[parents[node]] += weight[node];
    }
    return { areas, selves };
  }

  colours(groups, whole) {
    groups.sort((a, b) => b.area - a.area || (a.name < b.name ? -1 : 1));
    let own = 0, library = 0;
    for (const it of groups) {
      it.share = it.weight / whole;
      it.number = this.groups.length;
      if (it.kind === "kernel") it.colour = KERNEL;
      else if (it.kind === "generated") it.colour = GENERATED;
      else if (it.kind === "none") it.colour = NEUTRAL;
      else if (it.kind === "own") it.colour = own < OWN_HUES.length ? OWN_HUES[own++] : OTHER_OWN;
      else it.colour = library < LIBRARY_COLOURS ? mix(OWN_HUES[(library++ + 3) % OWN_HUES.length], LIBRARY_GREY, 0.72) : LIBRARY_GREY;
      it.isNamed = it.colour !== OTHER_OWN && it.colour !== LIBRARY_GREY;
      this.groups.push(it);
    }
    // What has no colour of its own is one group for the legend and the timeline.
    const rest = [["own", OTHER_OWN, "other own code"], ["library", LIBRARY_GREY, "other libraries"]].map(([kind, colour, name]) => {
      const list = this.groups.filter(it => it.colour === colour && it.kind === kind);
      const sum = field => list.reduce((sum, it) => sum + it[field], 0);
      return { kind, colour, name, area: sum("area"), share: sum("share"), list };
    });
    const kinds = ["own", "library", "generated", "kernel", "none"];
    this.legend = [...this.groups.filter(it => it.isNamed), ...rest].filter(it => it.area > 0)
      .sort((a, b) => kinds.indexOf(a.kind) - kinds.indexOf(b.kind) || !!a.list - !!b.list || b.area - a.area);
    this.legend.forEach((it, number) => { for (const group of it.list || [it]) group.legend = number; });
  }

  /* Number of a function's entry in the legend; -1 if it never ran itself. */
  legendOf(id) {
    return this.of[id].legend ?? -1;
  }

  /* Of a function; unmarked entries are pale. */
  colour(id, dark, pale) {
    const key = id * 4 + (dark ? 2 : 0) + (pale ? 1 : 0);
    if (!this.mixed.has(key)) this.mixed.set(key, this.shade(id, dark, pale));
    return this.mixed.get(key);
  }

  shade(id, dark, pale) {
    let colour = this.of[id].colour;
    // Neighbours of one package are told apart by a shade.
    let hash = 0;
    for (const c of this.model.functions[id].name) hash = (hash * 33 + c.codePointAt(0)) >>> 0;
    colour = mix(colour, "#ffffff", (hash % 5) * 0.07);
    if (pale) colour = mix(colour, "#f2f3f4", 0.6);
    return dark ? mix(colour, "#101418", 0.52) : colour;
  }

  static legendColour(it, dark) {
    return dark ? mix(it.colour, "#101418", 0.4) : it.colour;
  }
}

/* From blue (less) over grey to red (more), for a growth from -1 (gone) to 1 (new). */
const LESS = "#3b7dc4", MORE = "#d9542b", SAME = "#e2e3e4";

function growthColour(growth, dark, pale) {
  const strength = Math.min(Math.sqrt(Math.abs(growth)), 1);
  let colour = mix(SAME, growth < 0 ? LESS : MORE, strength * 0.85);
  if (pale) colour = mix(colour, "#f2f3f4", 0.5);
  return dark ? mix(colour, "#101418", 0.5) : colour;
}

function mix(a, b, part) {
  const channel = (colour, at) => parseInt(colour.slice(at, at + 2), 16);
  return "#" + [1, 3, 5].map(at => Math.round(channel(a, at) * (1 - part) + channel(b, at) * part).toString(16).padStart(2, "0")).join("");
}
