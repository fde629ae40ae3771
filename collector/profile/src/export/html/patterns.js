"use strict";
/* Patterns, as the command line has them: [name:|module:|file:|thread:|process:|unit:|container:|user:]TEXT. TEXT between slashes is a regular
 * expression, with * or ? a glob (unless a function has exactly this name), else itself; a function that nothing is called like is looked for as a part of names. */

class Pattern {
  /* Throws an Error with a message for people. */
  constructor(text) {
    const [, subject, what] = /^(?:(name|module|file|thread|process|unit|container|user):(?!:))?([^]*)$/.exec(text);
    if (!what || what === "//") throw new Error(`"${text}" names nothing`);
    this.text = text;
    this.subject = subject || "name";
    this.what = what;
    this.plain = false;
    this.isGlob = false;
    if (what.length > 1 && what.startsWith("/") && what.endsWith("/")) {
      const regex = Pattern.expression(text, what.slice(1, -1));
      this.test = it => regex.test(it);
    } else if (/[*?]/.test(what)) {
      this.isGlob = true;
      const regex = new RegExp("^" + what.replace(/[.+^${}()|[\]\\/]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".") + "$", "su");
      this.test = it => regex.test(it);
    } else {
      this.plain = true;
      this.test = it => it === what;
    }
  }

  /* The pattern that means the functions of just this name. */
  static of(name) {
    if (!/^\/|;;|^(name|module|file|thread|process|unit|container|user):|^\s|\s$/.test(name)) return name;
    return "/^" + name.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&").replace(/;/g, "\\x3b") + "$/";
  }

  static expression(text, source) {
    // The command line's expressions have their flags in front, JavaScript's beside them.
    const [, flags, rest] = /^(?:\(\?([ims]+)\))?([^]*)$/.exec(source);
    try {
      return new RegExp(rest, "u" + Array.from(new Set(flags || "")).join(""));
    } catch (error) {
      const why = String(error.message).replace(/^.*: /, "");
      throw new Error(`${text} is no regular expression: ${why}`);
    }
  }

  get isOfThreads() {
    return !["name", "module", "file"].includes(this.subject);
  }

  /* Numbers of the functions that are meant. */
  functions(functions) {
    const { subject, plain, what, test } = this;
    const base = path => path.slice(path.lastIndexOf("/") + 1);
    const path = it => it != null && (test(it) || test(base(it)) || (plain && it.endsWith("/" + what)));
    const named = it => test(it.name) || (it.fullName !== undefined && test(it.fullName));
    const is = subject === "module" ? it => path(it.path) : subject === "file" ? it => path(it.file) : named;
    // A function that is called just this is meant alone, also where its name reads as a glob: `operator*`.
    const exact = this.isGlob && subject === "name" ? functions.filter(it => it.name === what || it.fullName === what) : [];
    let found = this.isOfThreads ? [] : exact.length ? exact : functions.filter(is);
    if (!found.length && plain && subject === "name") {
      found = functions.filter(it => it.name.includes(what) || (it.fullName !== undefined && it.fullName.includes(what)));
    }
    return found.map(it => it.id);
  }

  /* Numbers of the threads that are meant. */
  threads(threads) {
    const is = (name, id) => this.test(name) || (this.plain && /^[0-9]+$/.test(this.what) && Number(this.what) === id);
    // A container goes by the beginning of its id, too.
    const isId = id => id !== undefined && this.plain && (id === this.what || (/^[0-9a-f]{32,}$/i.test(id) && this.what.length >= 6 && id.startsWith(this.what)));
    const unknown = { unit: "[unknown]", container: "[unknown]", user: "[unknown]" };
    const group = it => it.process.group === null ? unknown : it.process.group;
    const meant = {
      thread: it => is(it.name, it.tid),
      process: it => is(it.process.name, it.process.pid),
      unit: it => this.test(group(it).unit),
      container: it => [group(it).container, group(it).name].some(name => name && this.test(name)) || isId(group(it).id),
      user: it => is(group(it).user, group(it).uid),
    }[this.subject];
    return threads.filter(meant).map(it => it.id);
  }
}
