// Command workers squares numbers with workers that share a channel.
package main

import (
	"fmt"
	"sync"
)

func main() {
	jobs := make(chan int)
	squares := make([]int, 10)
	var workers sync.WaitGroup
	for i := 0; i < 3; i++ { // a range over an integer needs Go 1.22
		workers.Add(1)
		go func() {
			defer workers.Done()
			for n := range jobs {
				squares[n] = n * n
			}
		}()
	}
	for n := range squares {
		jobs <- n
	}
	close(jobs)
	workers.Wait()
	fmt.Println(squares)
}
