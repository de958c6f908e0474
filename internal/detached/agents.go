package detached

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// AgentDir is the private directory of a server that has one client, an agent. It lives as long as the server. The lock is beside it, so that
// the directory never exists without one:
//
//	$XDG_STATE_HOME/sandbox-run/agents/{ID.lock, ID/}
type AgentDir struct {
	Path   string
	parent *userdir.Dir
	lock   *os.File
}

const (
	lockSuffix = ".lock"
	agentKind  = "agent"
	attempts   = 10 // to get a lock that no collector removes meanwhile
)

func agentsDir() (string, error) {
	state, err := userdir.State()
	return filepath.Join(state, "agents"), err
}

// OpenAgentDir takes the lock of a new directory, and makes it. The caller closes it.
func OpenAgentDir() (*AgentDir, error) {
	path, err := agentsDir()
	if err != nil {
		return nil, err
	}
	parent, err := userdir.OpenDir(path, userdir.Write)
	if err != nil {
		return nil, err
	}
	for range attempts {
		d := &AgentDir{Path: filepath.Join(path, rand.Text()), parent: parent}
		if err = d.open(); err == nil {
			return d, nil
		}
		if !errors.Is(err, userdir.ErrBusy) {
			break
		}
	}
	return nil, errors.Join(err, parent.Close())
}

func (d *AgentDir) lockName() string { return filepath.Base(d.Path) + lockSuffix }

// open takes the lock. Its error is userdir.ErrBusy if a collector has the file, or has removed it.
func (d *AgentDir) open() (err error) {
	if d.lock, err = d.parent.Open(d.lockName(), userdir.Write); err != nil {
		return err
	}
	if err = userdir.Lock(d.lock, false, 0); err == nil && !d.parent.Is(d.lockName(), d.lock) {
		err = userdir.ErrBusy
	}
	if err == nil {
		err = os.Mkdir(d.Path, 0o700)
	}
	if err != nil {
		return errors.Join(err, d.lock.Close())
	}
	return nil
}

// Close removes the directory.
func (d *AgentDir) Close() error {
	return errors.Join(d.remove(), d.lock.Close(), d.parent.Close())
}

// remove removes the directory, and the lock last: until then gc finds what is left.
func (d *AgentDir) remove() error {
	if err := os.RemoveAll(d.Path); err != nil { //nolint:forbidigo // files of supervisors; no sandbox reaches them
		return fmt.Errorf("remove the directory of an agent: %w", err)
	}
	return d.parent.Remove(d.lockName())
}

// CollectAgents finds the directories of dead servers and, unless dryRun, removes them.
func CollectAgents(dryRun bool) (found []sandbox.Residue, err error) {
	path, err := agentsDir()
	if err != nil {
		return nil, err
	}
	parent, err := userdir.OpenDir(path, userdir.Trust)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	names, err := parent.Names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		id, ok := strings.CutSuffix(name, lockSuffix)
		if !ok {
			continue
		}
		d := &AgentDir{Path: filepath.Join(path, id), parent: parent}
		if d.lock, err = parent.Open(name, userdir.Trust); err != nil {
			continue // its server removes it now
		}
		if userdir.Lock(d.lock, false, 0) == nil && parent.Is(name, d.lock) {
			found = append(found, d.collect(dryRun))
		}
		_ = d.lock.Close()
	}
	return found, nil
}

func (d *AgentDir) collect(dryRun bool) sandbox.Residue {
	r := sandbox.Residue{Kind: agentKind, Name: d.Path}
	if dryRun {
		return r
	}
	if err := d.remove(); err != nil {
		r.Problem = err.Error()
		return r
	}
	r.Removed = true
	return r
}
