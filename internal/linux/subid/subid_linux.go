package subid

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Range is a run of ids of the host.
type Range struct{ First, Count int }

// Grant is the ids that a user may map in addition to the user's own id.
type Grant struct {
	UIDs, GIDs           Range
	newuidmap, newgidmap string
}

// ErrNone is wrapped when no usable grant exists.
var ErrNone = errors.New("no subordinate ids")

// Lookup finds the grant of the user this process runs as.
func Lookup() (*Grant, error) {
	g := &Grant{}
	for _, helper := range []struct {
		name string
		path *string
	}{{"newuidmap", &g.newuidmap}, {"newgidmap", &g.newgidmap}} {
		path, err := exec.LookPath(helper.name)
		if err != nil {
			return nil, fmt.Errorf("%w: %s is not installed (package uidmap)", ErrNone, helper.name)
		}
		*helper.path = path
	}
	id := strconv.Itoa(os.Getuid())
	name := id
	if u, err := user.LookupId(id); err == nil {
		name = u.Username
	}
	for _, table := range []struct {
		file string
		to   *Range
	}{{"/etc/subuid", &g.UIDs}, {"/etc/subgid", &g.GIDs}} {
		f, err := os.Open(table.file)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNone, err)
		}
		text, err := io.ReadAll(io.LimitReader(f, maxTable))
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNone, err)
		}
		r, ok := parse(text, name, id)
		if !ok {
			return nil, fmt.Errorf("%w: %s has no range for %s", ErrNone, table.file, name)
		}
		*table.to = r
	}
	return g, nil
}

// maxTable bounds the bytes that are read of a table; a line has about twenty.
const maxTable = 16 << 20

// parse returns the largest range of a user, given by name or by number. It skips malformed lines, as newuidmap does.
func parse(text []byte, name, id string) (best Range, ok bool) {
	for line := range bytes.Lines(text) {
		fields := strings.Split(strings.TrimSpace(string(line)), ":")
		if len(fields) != 3 || fields[0] != name && fields[0] != id {
			continue
		}
		first, err := strconv.ParseUint(fields[1], 10, 32)
		count, err2 := strconv.ParseUint(fields[2], 10, 32)
		// 0 is root, and the last id is the kernel's "none".
		if err != nil || err2 != nil || first == 0 || count == 0 || first+count > 1<<32-1 {
			continue
		}
		if int(count) > best.Count {
			best, ok = Range{First: int(first), Count: int(count)}, true
		}
	}
	return best, ok
}

// helperTimeout bounds a helper, which may ask a remote name service about the user. PATH chooses the helper, so it may be
// any program: without a timeout a run could wait forever.
const helperTimeout = 10 * time.Second

// Map writes the id maps of a process's user namespace. The process must be an unreaped child. Map blocks until the helpers
// have ended, at most helperTimeout each.
func (g *Grant) Map(pid int, uids, gids []syscall.SysProcIDMap) error {
	for _, m := range []struct {
		helper string
		ids    []syscall.SysProcIDMap
	}{{g.newuidmap, uids}, {g.newgidmap, gids}} {
		args := []string{strconv.Itoa(pid)}
		for _, id := range m.ids {
			args = append(args, strconv.Itoa(id.ContainerID), strconv.Itoa(id.HostID), strconv.Itoa(id.Size))
		}
		ctx, cancel := context.WithTimeout(context.Background(), helperTimeout)
		cmd := exec.CommandContext(ctx, m.helper, args...)
		cmd.WaitDelay = time.Second // for children of the helper
		out, err := cmd.CombinedOutput()
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer in %v: %w", helperTimeout, ctx.Err())
		} else if errors.Is(err, exec.ErrWaitDelay) {
			err = nil // the helper succeeded; another child of this process, not yet executed, still has its pipe open
		}
		cancel()
		if err != nil {
			return fmt.Errorf("%s %s: %w: %s", m.helper, strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
	}
	return nil
}
