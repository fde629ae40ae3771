"""Recursion and JSON. Argument: `recursive` or `json`."""

import json
import random
import sys


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def ackermann(m, n):
    if m == 0:
        return n + 1
    if n == 0:
        return ackermann(m - 1, 1)
    return ackermann(m - 1, ackermann(m, n - 1))


class Tree:
    def __init__(self, depth):
        self.children = [Tree(depth - 1) for _ in range(2)] if depth else []

    def walk(self):
        yield 1
        for child in self.children:
            yield from child.walk()


def recursive():
    sys.setrecursionlimit(10_000)
    total = fib(30)
    for _ in range(25):
        total += ackermann(2, 400)
        total += sum(Tree(14).walk())
    return total


def document(depth, source):
    if depth == 0:
        return source.choice([source.random(), source.randrange(10**9), None, True, "word " * source.randrange(5)])
    if depth % 2:
        return [document(depth - 1, source) for _ in range(6)]
    return {f"key {i}": document(depth - 1, source) for i in range(6)}


def as_json():
    source = random.Random(42)
    value = document(6, source)
    total = 0
    for i in range(70):
        text = json.dumps(value, indent=i % 2 or None, sort_keys=True)
        value = json.loads(text, object_hook=lambda pairs: dict(sorted(pairs.items())))
        total += len(text)
    return total


print({"recursive": recursive, "json": as_json}[sys.argv[1]]())
