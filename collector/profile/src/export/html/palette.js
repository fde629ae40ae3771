"use strict";
/* Colours. Which function has which is decided by `palette.rs`: the hue is its package. In the difference of two profiles the
 * colour is the growth instead. */

const NEUTRAL = ["#e4e6e8", "#2b2f35"];

class Palette {
  constructor(model, { tones, packages, functions }) {
    this.tones = tones;
    this.packages = packages.map((it, id) => ({ ...it, id }));
    const numbers = unpack(functions);
    this.of = model.functions.map((_, id) => [(numbers[3 * id] || 0) - 1, numbers[3 * id + 1] || 0, numbers[3 * id + 2] || 0]);
    // The hues of all packages, one after the other; the last one is that of nothing.
    this.hues = this.packages.flatMap(it => it.tones);
    let first = 0;
    for (const it of this.packages) { it.first = first; first += it.tones.length; }
    this.paled = new Map();
  }

  /* Number of a function's package; -1 if it has none. */
  packageOf(id) {
    return this.of[id][0];
  }

  /* Number of a function's hue among those of all packages. */
  hueOf(id) {
    const [group, , hue] = this.of[id];
    return group < 0 ? this.hues.length : this.packages[group].first + hue;
  }

  hueColour(number, dark) {
    return (number < this.hues.length ? this.tones[this.hues[number]] : NEUTRAL)[dark ? 1 : 0];
  }

  /* Of a function; unmarked entries are pale. */
  colour(id, dark, pale) {
    const [group, tone] = this.of[id], colour = (group < 0 ? NEUTRAL : this.tones[tone])[dark ? 1 : 0];
    return pale ? this.pale(colour, dark) : colour;
  }

  pale(colour, dark) {
    if (!this.paled.has(colour)) this.paled.set(colour, mix(colour, PALE[dark ? 1 : 0], 0.6));
    return this.paled.get(colour);
  }

  /* The colours of a package. */
  colours({ tones }, dark) {
    return tones.map(tone => this.tones[tone][dark ? 1 : 0]);
  }
}

/* What the colours of entries in parentheses are mixed with. */
const PALE = ["#f2f3f4", "#20242a"];

/* From blue (less) over grey to red (more), for a growth from -1 (gone) to 1 (new). */
const LESS = ["#3b7dc4", "#1f5fa6"], MORE = ["#d9542b", "#a33a16"], SAME = ["#e2e3e4", "#3a3f46"];

function growthColour(growth, dark, pale) {
  const theme = dark ? 1 : 0, strength = Math.min(Math.sqrt(Math.abs(growth)), 1);
  const colour = mix(SAME[theme], (growth < 0 ? LESS : MORE)[theme], strength * 0.85);
  return pale ? mix(colour, PALE[theme], 0.5) : colour;
}

function mix(a, b, part) {
  const channel = (colour, at) => parseInt(colour.slice(at, at + 2), 16);
  return "#" + [1, 3, 5].map(at => Math.round(channel(a, at) * (1 - part) + channel(b, at) * part).toString(16).padStart(2, "0")).join("");
}
