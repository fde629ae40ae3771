/* Sorts below recursion of changing depth, and prints: the C library's functions call back and are called from everywhere. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int numbers[20000];

static int compare(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static int descend(int depth) {
    if (depth > 0) return descend(depth - 1) + 1;
    for (int i = 0; i < 20000; i++) numbers[i] = rand();
    qsort(numbers, 20000, sizeof *numbers, compare);
    return numbers[0] & 1;
}

int main(void) {
    unsigned long sum = 0;
    for (int round = 0; round < 450; round++) {
        char text[64];
        sum += descend(round % 30);
        for (int i = 0; i < 200; i++) sum += snprintf(text, sizeof text, "%d %f", i, sum / 3.0) + strlen(text);
    }
    return sum == 1;
}
