package main

import (
	"fmt"
	"os"

	"example.com/hello/greet"
)

func main() {
	for _, name := range append(os.Args[1:], "world") {
		fmt.Println(greet.Greeting(name))
	}
}
