import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.Collectors;

/** Recursion, collections, lambdas and strings; a thread of its own beside the main one. */
public final class Workload {
    static long fib(int n) {
        return n < 2 ? n : fib(n - 1) + fib(n - 2);
    }

    interface Node {
        long value(int fuel);
    }

    static Node grow(Random random, int depth) {
        if (depth == 0) {
            long number = random.nextInt(1000);
            return fuel -> number;
        }
        Node left = grow(random, depth - 1);
        Node right = grow(random, depth - 1 - random.nextInt(depth));
        return fuel -> left.value(fuel - 1) * 3 + right.value(fuel - 1);
    }

    static long words(Random random, int count) {
        List<String> words = new ArrayList<>();
        for (int i = 0; i < count; i++) words.add(Long.toString(random.nextLong(), 36));
        words.sort(Comparator.comparing((String word) -> word.substring(1)).thenComparing(Comparator.naturalOrder()));
        Map<String, Long> counts =
                words.stream().collect(Collectors.groupingBy(word -> word.substring(0, 2), HashMap::new, Collectors.counting()));
        return counts.values().stream().mapToLong(Long::longValue).max().orElse(0);
    }

    static long work(int seed, int rounds) {
        Random random = new Random(seed);
        long total = 0;
        for (int round = 0; round < rounds; round++) {
            Node root = grow(random, 20);
            for (int i = 0; i < 10; i++) total += root.value(100);
            total += words(random, 60_000);
            total += fib(32);
        }
        return total;
    }

    public static void main(String[] arguments) throws InterruptedException {
        long[] result = new long[1];
        Thread thread = new Thread(() -> result[0] = work(1, 12), "worker");
        thread.start();
        long total = work(2, 12);
        thread.join();
        System.out.println(total + result[0]);
    }
}
