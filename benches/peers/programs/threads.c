/* 200 threads, all busy, each some calls deep. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#define THREADS 200

__attribute__((noinline)) static uint64_t work(uint64_t x, int n) {
    for (int i = 0; i < n; i++) x = x * 6364136223846793005u + (x >> 33);
    return x;
}

__attribute__((noinline)) static uint64_t descend(uint64_t x, int depth) {
    if (depth == 0) return work(x, 30000);
    return descend(x, depth - 1) + work(x, 10);
}

static void *thread(void *argument) {
    uint64_t x = (uintptr_t)argument;
    for (int i = 0; i < 500; i++) x = descend(x, 5 + i % 40);
    return (void *)(uintptr_t)x;
}

int main(void) {
    pthread_t threads[THREADS];
    uint64_t sum = 0;
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, thread, (void *)i) != 0) return 1;
    for (int i = 0; i < THREADS; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        sum += (uintptr_t)result;
    }
    printf("%llu\n", (unsigned long long)sum);
}
