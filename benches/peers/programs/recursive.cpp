// Recursion as C++ programs have it: an expression tree of templates and shared pointers, evaluated through virtual
// calls and lambdas in std::function, sorted with std::sort, and left by exceptions.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace tree {

struct Node {
    virtual ~Node() = default;
    virtual std::int64_t value(int fuel) const = 0;
};

using Pointer = std::shared_ptr<const Node>;

struct Leaf final : Node {
    explicit Leaf(std::int64_t number) : number(number) {}
    std::int64_t value(int) const override { return number; }
    std::int64_t number;
};

struct OutOfFuel : std::runtime_error {
    using std::runtime_error::runtime_error;
};

template <typename Operation>
struct Binary final : Node {
    Binary(Pointer left, Pointer right, Operation operation)
        : left(std::move(left)), right(std::move(right)), operation(std::move(operation)) {}
    std::int64_t value(int fuel) const override {
        if (fuel == 0) throw OutOfFuel("too deep");
        return operation(left->value(fuel - 1), right->value(fuel - 1));
    }
    Pointer left, right;
    Operation operation;
};

using Function = std::function<std::int64_t(std::int64_t, std::int64_t)>;

Pointer grow(std::mt19937_64 &random, int depth) {
    if (depth == 0) return std::make_shared<Leaf>(static_cast<std::int64_t>(random() % 1000));
    auto left = grow(random, depth - 1), right = grow(random, depth - 1 - static_cast<int>(random() % depth));
    auto factor = static_cast<std::int64_t>(random() % 7);
    if (factor % 2)
        return std::make_shared<Binary<Function>>(left, right, [factor](auto a, auto b) { return a * factor + b; });
    auto larger = [](std::int64_t a, std::int64_t b) { return a > b ? a - b : b; };
    return std::make_shared<Binary<decltype(larger)>>(left, right, larger);
}

}  // namespace tree

template <typename Iterator, typename Less>
void quicksort(Iterator begin, Iterator end, const Less &less) {
    if (end - begin < 16) return std::sort(begin, end, less);
    auto pivot = *(begin + (end - begin) / 2);
    auto middle = std::partition(begin, end, [&](const auto &x) { return less(x, pivot); });
    auto upper = std::partition(middle, end, [&](const auto &x) { return !less(pivot, x); });
    quicksort(begin, middle, less);
    quicksort(upper, end, less);
}

int main() {
    std::mt19937_64 random(42);
    std::int64_t sum = 0;
    for (int round = 0; round < 100; round++) {
        auto root = tree::grow(random, 22);
        for (int fuel : {5, 15, 40, 40, 40}) {
            try {
                sum += root->value(fuel);
            } catch (const tree::OutOfFuel &error) {
                sum += error.what()[0];
            }
        }
        std::vector<std::string> words;
        for (int i = 0; i < 60000; i++) words.push_back(std::to_string(random()));
        quicksort(words.begin(), words.end(), [](const auto &a, const auto &b) { return a < b; });
        std::map<std::string, int> counts;
        for (const auto &word : words) counts[word.substr(0, 4)]++;
        sum += static_cast<std::int64_t>(counts.size());
    }
    std::printf("%lld\n", static_cast<long long>(sum));
}
