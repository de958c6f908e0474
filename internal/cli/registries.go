package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// RegistryMessage is a line of `sandbox-run deps proxy`:
//
//	proxy  → {access}    it serves the registry
//	caller   closes its standard input, or is gone
//	proxy  → {refused}   what it did not forward; then it exits
//
// In place of the first, {error} if it can not.
type RegistryMessage struct {
	Access  *deps.Access       `json:"access,omitempty"`
	Refused []string           `json:"refused,omitempty"`
	Error   *sandbox.ErrorInfo `json:"error,omitempty"`
}

// registries serves registries by the full executable, which links net/http.
type registries struct{ c *Invocation }

// registryTimeout is how long the proxy may take to start, and to end.
const registryTimeout = 10 * time.Second

// Open starts the proxy as a child process, which ends with this process.
func (r registries) Open(ctx context.Context, name string) (*deps.Access, func() []string, error) {
	failed := func(err error, hint string) (*deps.Access, func() []string, error) {
		return nil, nil, &sandbox.Error{Op: "registry " + name, Kind: sandbox.ErrUnsupported, Err: err, Hint: hint}
	}
	path, err := findFull()
	if r.c.full != nil {
		path, err = os.Executable()
	}
	if err != nil {
		return failed(err, r.c.fullHint())
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, path, "deps", "proxy", name)
	cmd.WaitDelay = registryTimeout
	in, err := cmd.StdinPipe()
	if err != nil {
		cancel()
		return failed(err, "")
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return failed(err, r.c.fullHint())
	}
	lines := bufio.NewScanner(out)
	end := func() (refused []string) {
		_ = in.Close()
		late := time.AfterFunc(registryTimeout, cancel)
		defer late.Stop()
		defer cancel()
		for lines.Scan() {
			var m RegistryMessage
			if json.Unmarshal(lines.Bytes(), &m) == nil {
				refused = append(refused, m.Refused...)
			}
		}
		_ = cmd.Wait() // it has said what it has to say
		return refused
	}
	late := time.AfterFunc(registryTimeout, cancel)
	found := lines.Scan()
	late.Stop()
	var m RegistryMessage
	err = errors.New("the proxy has ended")
	if found {
		err = json.Unmarshal(lines.Bytes(), &m)
	}
	if err == nil && m.Error != nil {
		err = errors.New(m.Error.Message)
	}
	if err == nil && m.Access == nil {
		err = errors.New("the proxy does not say where it is")
	}
	if err != nil {
		end()
		hint := "sandbox-run deps doctor"
		if m.Error != nil && m.Error.Hint != "" {
			hint = m.Error.Hint
		}
		return failed(err, hint)
	}
	return m.Access, end, nil
}

// readLock reads the file of --lock, if it exists.
func (o *runOptions) readLock() error {
	if o.lock == "" {
		return nil
	}
	f, err := os.Open(o.lock)
	if errors.Is(err, os.ErrNotExist) {
		if o.options.Frozen {
			return sandbox.Errorf(sandbox.ErrInvalid, "lock", "run it once without --frozen, which writes the file", "%s does not exist", o.lock)
		}
		o.options.ReturnLock, o.options.Install = true, o.options.Install || len(o.options.Deps) == 0
		return nil
	}
	if err != nil {
		return sandbox.Invalid("lock", "%w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 64<<20))
	if err != nil {
		return sandbox.Invalid("lock", "%w", err)
	}
	if len(text) == 0 { // as no lock at all, it would fix nothing
		return sandbox.Errorf(sandbox.ErrInvalid, "lock", "remove the file, and the next run writes another", "%s is empty", o.lock)
	}
	o.options.Lock = string(text)
	return nil
}

// writeLock writes the file of --lock, unless it existed before the run.
func (o *runOptions) writeLock(d *executor.Deps) error {
	if o.lock == "" || o.options.Lock != "" || d == nil || d.Lock == "" {
		return nil
	}
	f, err := os.OpenFile(o.lock, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	_, err = f.WriteString(d.Lock)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(o.lock) // the next run would take a part for a lock
		return fmt.Errorf("lock: %w", err)
	}
	return nil
}
