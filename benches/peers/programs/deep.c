/* Recursion 100,000 calls deep, over several MB of stack: down, some work at the bottom that goes up and down a
 * thousand calls, and up again. Some work is done at every level, so the stack is sampled at every depth. */
#include <stdint.h>
#include <stdio.h>

#define DEPTH 100000
#define ROUNDS 12

static volatile uint64_t sink;

__attribute__((noinline)) static uint64_t work(uint64_t x, int n) {
    for (int i = 0; i < n; i++) x = x * 6364136223846793005u + (x >> 33);
    sink = x;
    return x;
}

__attribute__((noinline)) static uint64_t shallow(uint64_t x, int depth) {
    uint64_t kept[4] = {x, x + 1, x + 2, x + 3};
    x = work(x, 200);
    if (depth > 0) x = shallow(x, depth - 1);
    return work(x, 200) + kept[x & 3];
}

__attribute__((noinline)) static uint64_t descend(uint64_t x, int depth) {
    uint64_t kept[4] = {x, x + 1, x + 2, x + 3};
    x = work(x, 400);
    if (depth > 0) {
        x = descend(x, depth - 1);
    } else {
        for (int i = 0; i < 500; i++) x = shallow(x, 1000);
    }
    return work(x, 400) + kept[x & 3];
}

int main(void) {
    uint64_t x = 1;
    for (int i = 0; i < ROUNDS; i++) x = descend(x, DEPTH);
    printf("%llu\n", (unsigned long long)x);
}
