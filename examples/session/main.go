//go:build linux

// Command session executes pieces of code one after the other in an interpreter that keeps its state.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
	"github.com/sandbox-run/sandbox-run/pkg/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	backend, err := native.New(native.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, backend.Close()) }() // runs last: no sandbox may be left
	sandboxes := sandbox.NewManager(backend, sandbox.Options{})
	defer func() { err = errors.Join(err, sandboxes.Close()) }()
	sessions := session.NewManager(executor.New(sandboxes, executor.Options{}), session.Options{Idle: time.Hour})
	defer sessions.Close() // before the manager of sandboxes

	s, err := sessions.Create(ctx, session.Request{Request: executor.Request{
		Language: "python",
		Files:    []executor.File{{Path: "shop.py", Data: []byte("def total(prices): return sum(prices)\n")}},
		Limits:   sandbox.Limits{Wall: 5 * time.Second, Memory: 256 * sandbox.MiB},
	}})
	if err != nil {
		return err
	}
	defer s.Close()
	for _, code := range []string{
		"import shop; prices = [19, 23]",
		"shop.total(prices)",
		"input('your name? ')",
		"while True: pass", // ends at the time limit; the state stays
		"1 / 0",
		"shop.total(prices) + 1",
	} {
		r, err := s.Execute(ctx, session.Cell{
			Code:   code,
			Limits: sandbox.Limits{Wall: 2 * time.Second},
			Input:  func(context.Context, protocol.Input) (string, bool) { return "Ada", true },
		})
		if err != nil {
			return err // sandbox-run failed, or the session has ended
		}
		message := ""
		if r.Error != nil {
			message = r.Error.Name
		}
		fmt.Println(r.Cell, r.Verdict, r.Value(), message)
		r.Close()
	}
	fork, err := s.Fork(ctx, session.ForkOptions{}) // the same state, in a second interpreter
	if err != nil {
		return err
	}
	defer fork.Close()
	r, err := fork.Execute(ctx, session.Cell{Code: "prices.append(1); shop.total(prices)"})
	if err != nil {
		return err
	}
	defer r.Close()
	fmt.Println("fork", r.Verdict, r.Value())
	return nil
}
