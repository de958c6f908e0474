package native

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/clone"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// A file can be executed at once after Put, whatever other processes start meanwhile: until its exec, every child of the
// supervisor has a copy of the descriptor by which the file was written, and the kernel executes no file that is open
// for writing.
func TestPutAndExecute(t *testing.T) {
	b := newBackend(t, Options{})
	m := sandbox.NewManager(b, sandbox.Options{})
	defer func() {
		if err := errors.Join(m.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute) // slow on an emulated or busy machine
	defer cancel()
	var work, noise sync.WaitGroup
	over := make(chan struct{})
	for range 2 {
		noise.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					_ = exec.Command("/bin/true").Run()
				}
			}
		})
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	noise.Go(func() { // as processes of networks are started
		for {
			select {
			case <-over:
				return
			default:
			}
			fd := int(null.Fd())
			pid, _, err := clone.StartProgram(clone.Program{Stdio: [3]int{fd, fd, fd}, Landlock: -1, Isolated: true, Dir: "/", Paths: []string{"/bin/true"}, Args: []string{"true"}})
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = unix.Wait4(pid, nil, 0, nil)
		}
	})
	for range 6 {
		work.Go(func() {
			for range 8 {
				id, err := m.Create(ctx, sandbox.Spec{Require: sandbox.TierNamespace, Scratch: sandbox.ScratchMemory})
				if err != nil {
					t.Error(err)
					return
				}
				files := make([]sandbox.File, 20)
				script := ""
				for i := range files {
					name := "/workspace/tool" + string(rune('a'+i))
					files[i] = sandbox.File{Path: name, Mode: 0o755, Data: []byte("#!/bin/sh\n:\n")}
					script = name + " || exit 9; " + script // the last file that was written is executed first
				}
				res, err := (*sandbox.Result)(nil), m.Put(ctx, id, files)
				if err == nil {
					res, err = m.Run(ctx, id, sandbox.Process{Args: []string{"/bin/sh", "-c", script}, Limits: sandbox.Limits{Wall: 10 * time.Minute}},
						sandbox.IO{})
				}
				if err != nil || res.Verdict != sandbox.VerdictOK {
					t.Errorf("%v, %+v, %s", err, res.Exit, res.Stderr.Bytes())
				}
				if err := m.Delete(ctx, id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	close(over)
	noise.Wait()
}
