// What the kernels' smoke suite samples: `busy SECONDS` computes and reads; `busy crash` dies in a function of its own.
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <fcntl.h>

static volatile unsigned long sum;

__attribute__((noinline)) static void compute(void) {
    for (unsigned i = 0; i < 2000000; i++)
        sum += i * sum;
}

__attribute__((noinline)) static void ask_the_kernel(int fd) {
    static char page[65536];
    for (unsigned i = 0; i < 200; i++)
        if (pread(fd, page, sizeof page, 0) < 0)
            exit(1);
}

__attribute__((noinline)) static void crash_here(volatile int *nowhere) {
    *nowhere = 1;
    sum++;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "crash")) {
        compute();
        crash_here(0);
    }
    time_t end = time(0) + (argc > 1 ? atoi(argv[1]) : 3);
    int fd = open("/dev/zero", O_RDONLY);
    while (time(0) < end) {
        compute();
        ask_the_kernel(fd);
    }
    return 0;
}
