package native

import (
	"context"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// A sandbox is destroyed when all its inits are gone, including an init whose last process another goroutine is just
// finishing: afterwards another sandbox gets its ids.
func TestDestroyWaitsForPhases(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	in, err := b.Create(t.Context(), warmSpec())
	if err != nil {
		t.Fatal(err)
	}
	ph := in.(*instance).Spare() // becomes the phase of the process
	task, err := in.Start(t.Context(), &sandbox.Process{
		Phase: sandbox.DefaultPhase, Args: []string{"/bin/true"}, Workdir: sandbox.WorkspaceDir, Limits: sandbox.DefaultLimits(),
		Network: sandbox.NetworkNone,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer task.CloseOutput()
	if _, err := task.Wait(); err != nil {
		t.Fatal(err)
	}
	if !ph.Leave() { // the first half of Task.Finish
		t.Fatal("it was not the last")
	}
	destroyed := make(chan error, 1)
	go func() { destroyed <- in.Destroy(context.Background()) }()
	select {
	case err := <-destroyed:
		t.Errorf("destroyed before its phase was finished: %v", err)
		destroyed <- err
	case <-time.After(200 * time.Millisecond):
	}
	if _, err := ph.Finish(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-destroyed; err != nil {
		t.Error(err)
	}
	select {
	case <-ph.Init.Done():
	default:
		t.Error("destroyed before its init was gone")
	}
}
