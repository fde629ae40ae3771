// Recursion, JSON, sorting with a comparator, regular expressions and a generator.
'use strict';

function fib(n) {
  return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

function build(depth) {
  if (depth === 0) return { value: Math.imul(depth + 7, 2654435761) % 1000, text: 'leaf' };
  return { left: build(depth - 1), right: build(depth - 1), tags: ['a', 'b', String(depth)] };
}

function* walk(tree) {
  if (!tree) return;
  yield tree.value || 0;
  yield* walk(tree.left);
  yield* walk(tree.right);
}

class Sorter {
  constructor(seed) {
    this.seed = seed;
  }
  next() {
    this.seed = (Math.imul(this.seed, 1103515245) + 12345) & 0x7fffffff;
    return this.seed;
  }
  run(count) {
    const words = Array.from({ length: count }, () => `w${this.next()}`);
    words.sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
    return words.filter((word) => /7+[0-3]/.test(word)).length;
  }
}

let total = fib(38);
for (let round = 0; round < 10; round++) {
  const tree = build(14);
  const text = JSON.stringify(tree, (key, value) => (key === 'text' ? value.toUpperCase() : value));
  const copy = JSON.parse(text);
  for (const value of walk(copy)) total += value;
  total += new Sorter(round + 1).run(150000);
}
console.log(total);
