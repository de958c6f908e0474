// Command library runs a piece of code from a Go program.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	code := executor.NewCodeExecutor(30 * time.Second)
	defer code.Close()
	result, err := code.Execute(ctx, executor.ExecutionRequest{
		Language: "python",
		Code:     "print('Hello, World!')",
		Timeout:  10 * time.Second,
	})
	if err != nil {
		return err // an error of the executor; errors of the code are in the result
	}
	fmt.Print(result.Stdout)
	return result.Error
}
