// Go: a sieve of goroutines, one for each prime, that hand numbers on through channels. Holds: stacks of goroutines on the
// heap, the scheduler's and the collector's state, a map. Argument: how many primes. Checks them by division.
package main

import (
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
)

func generate(out chan<- int) {
	for n := 2; ; n++ {
		out <- n
	}
}

func filter(in <-chan int, out chan<- int, prime int) {
	for {
		if n := <-in; n%prime != 0 {
			out <- n
		}
	}
}

func isPrime(n int) bool {
	for d := 2; d*d <= n; d++ {
		if n%d == 0 {
			return false
		}
	}
	return n > 1
}

func main() {
	count := 200
	if len(os.Args) > 1 {
		count, _ = strconv.Atoi(os.Args[1])
	}
	gaps := make(map[int]int)
	digest := fnv.New64a()
	numbers := make(chan int)
	go generate(numbers)
	last := 2
	for i := 0; i < count; i++ {
		prime := <-numbers
		if !isPrime(prime) {
			fmt.Println(prime, "is no prime")
			os.Exit(1)
		}
		gaps[prime-last]++
		last = prime
		fmt.Fprintf(digest, "%d ", prime)
		next := make(chan int)
		go filter(numbers, next, prime)
		numbers = next
	}
	fmt.Println(last, gaps, strconv.FormatUint(digest.Sum64(), 16)) // fmt sorts maps
}
