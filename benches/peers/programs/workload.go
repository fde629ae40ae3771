// Goroutines with deep stacks, maps, sorting, JSON and the garbage collector.
package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"sort"
	"strconv"
	"sync"
)

type tree struct {
	Left, Right *tree
	Value       int
}

func grow(source *rand.Rand, depth int) *tree {
	if depth == 0 {
		return nil
	}
	return &tree{grow(source, depth-1), grow(source, depth-1), source.Intn(1000)}
}

func (t *tree) sum() int {
	if t == nil {
		return 0
	}
	return t.Value + t.Left.sum() + t.Right.sum()
}

func descend(depth int, work func() int) int {
	if depth == 0 {
		return work()
	}
	return descend(depth-1, work) + 1
}

func words(source *rand.Rand, count int) int {
	counts := map[string]int{}
	list := make([]string, 0, count)
	for i := 0; i < count; i++ {
		word := strconv.FormatInt(source.Int63(), 36)
		list = append(list, word)
		counts[word[:3]]++
	}
	sort.Slice(list, func(i, j int) bool { return list[i] < list[j] })
	return len(counts) + len(list[0])
}

func work(seed int64) int {
	source := rand.New(rand.NewSource(seed))
	total := 0
	for round := 0; round < 16; round++ {
		root := grow(source, 15)
		for i := 0; i < 50; i++ {
			total += root.sum()
		}
		total += descend(300*(round+1), func() int { return words(source, 20000) })
		text, err := json.Marshal(root)
		if err != nil {
			panic(err)
		}
		var copied tree
		if err := json.Unmarshal(text, &copied); err != nil {
			panic(err)
		}
		total += copied.sum()
	}
	return total
}

func main() {
	var group sync.WaitGroup
	results := make([]int, 6)
	for i := range results {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			results[i] = work(int64(i))
		}(i)
	}
	group.Wait()
	fmt.Println(results)
}
