"use strict";
/* What is shown, as the address behind # says it. Every step is in the browser's history. */

const PATTERN_FIELDS = ["only", "hide", "focus", "ignore"];
/* Of each field: what it is if the address does not say. */
const INITIAL = {
  view: "flame", search: "", only: "", hide: "", focus: "", ignore: "", sort: "self", up: false, startup: false, interpreter: false, time: "",
  function: -1, zoom: -1, part: "", metric: 0, order: "weight", flip: false, tracks: "function", absolute: false, group: -1, beside: false,
};
/* Fields that ask another question; the others only show its answer differently. */
const ASKING = new Set([...PATTERN_FIELDS, "startup", "interpreter", "time"]);

/* What Escape takes back, one after the other. */
const STEPS = [["search"], ["group"], ["zoom", "part"], ["time"], ["ignore"], ["focus"], ["hide"], ["only"]];

class Address {
  /* `valid` has a test for some fields. */
  constructor(valid) {
    this.valid = valid;
    this.state = { ...INITIAL };
    this.text = null;
  }

  read() {
    this.text = location.hash;
    const given = new URLSearchParams(location.hash.slice(1));
    if (given.get("sort") === "total") given.set("sort", "inherited");
    for (const field in INITIAL) {
      const text = given.get(field), initial = INITIAL[field];
      const value = text === null ? initial : typeof initial === "boolean" ? text === "1" : typeof initial === "number" ? Number(text) : text;
      const isValid = typeof initial === "number" ? Number.isInteger(value) && value >= 0 : true;
      this.state[field] = isValid && (!this.valid[field] || this.valid[field](value)) ? value : initial;
    }
    return given;
  }

  /* Writes the state down: as a step of its own, or as the same one. */
  write(replaces) {
    const parts = ["view=" + this.state.view];
    for (const field in INITIAL) {
      const value = this.state[field];
      if (field === "view" || value === INITIAL[field]) continue;
      parts.push(field + "=" + (value === true ? "1" : encodeURIComponent(value)));
    }
    const text = "#" + parts.join("&");
    if (text === this.text) return;
    this.text = text;
    history[replaces ? "replaceState" : "pushState"](null, "", text);
  }
}
