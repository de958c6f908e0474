package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// copyTimeout is far beyond what copying a few files takes. A copy that waits for a pipe takes longer.
const copyTimeout = 8 * time.Second

// copiesFiles reports whether the backend copies files at all.
func (t *trial) copiesFiles(id string) bool {
	err := t.manager.Put(t.ctx, id, nil)
	if errors.Is(err, sandbox.ErrUnsupported) {
		t.note("this backend copies no files in or out")
	}
	return err == nil
}

// bounded calls f, which has to return by itself.
func (t *trial) bounded(what string, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(copyTimeout):
		t.breach("%s has not returned within %v", what, copyTimeout)
		return errors.New("it hangs")
	}
}

// carriedOut is the result of a Take.
type carriedOut struct {
	files, untaken map[string]string
	err            error
}

func (t *trial) takeOut(id string, patterns ...string) carriedOut {
	files, untaken := map[string]string{}, map[string]string{}
	err := t.bounded("taking "+strings.Join(patterns, ", "), func(ctx context.Context) error {
		left, err := t.manager.Take(ctx, id, sandbox.Selection{Patterns: patterns}, func(f sandbox.File, _ sandbox.Size, r io.Reader) error {
			text, err := io.ReadAll(r)
			files[f.Path] = string(text)
			return err
		})
		for _, u := range left {
			untaken[u.Path] = u.Reason
		}
		return err
	})
	if err != nil {
		return carriedOut{err: err} // a hanging Take may still write to the others
	}
	return carriedOut{files, untaken, nil}
}

func (t *trial) putIn(id, path, text string) error {
	return t.bounded("putting "+path, func(ctx context.Context) error {
		return t.manager.Put(ctx, id, []sandbox.File{{Path: path, Data: []byte(text)}})
	})
}

// takeWhatIsPlanted takes files out of a sandbox that has planted everything but files.
func (t *trial) takeWhatIsPlanted() {
	secret := t.file(t.dir()+"/secret", "the host's", 0o644)
	id := t.sandbox()
	if !t.copiesFiles(id) {
		return
	}
	planted := t.inside(id, "plant", sandbox.WorkspaceDir, secret)
	for _, kind := range []string{"symlink", "symlinked directory", "fifo", "socket", "file"} {
		t.control(planted.of(kind).OK(), "plant a "+kind+" in the scratch", say(planted.of(kind)))
	}
	judge := func(name string, got carriedOut) {
		said := fmt.Sprintf("taken %d, not taken %d", len(got.files), len(got.untaken))
		for path, text := range got.files {
			if strings.Contains(text, "the host's") || path != "/workspace/file" {
				said = fmt.Sprintf("taken %s: %.60q", path, text)
				t.judge(false, name, said, "a plain file: taken")
				return
			}
		}
		t.judge(got.err == nil, name, said, "a plain file: taken")
	}
	all := t.takeOut(id, sandbox.WorkspaceDir)
	t.control(all.files["/workspace/file"] == "plain", "take a plain file", fmt.Sprint(all.files, all.err))
	judge("take all there is", all)
	for _, name := range []string{"symlink", "symlinked", "fifo", "socket"} {
		t.judge(all.untaken["/workspace/"+name] != "", "say that its "+name+" is not taken", all.untaken["/workspace/"+name], "")
	}
	for _, pattern := range []string{"symlink", "symlinked/secret", "symlinked/**", "*/secret", "fifo", "socket"} {
		judge("take "+pattern, t.takeOut(id, "/workspace/"+pattern))
	}
}

// putOverWhatIsPlanted puts files over the entries that a sandbox has planted.
func (t *trial) putOverWhatIsPlanted() {
	outside := t.dir()
	secret := t.file(outside+"/secret", "the host's", 0o666)
	t.must(os.Chmod(outside, 0o777))
	id := t.sandbox()
	if !t.copiesFiles(id) {
		return
	}
	err := t.putIn(id, "/workspace/plain/file", "brought in")
	seen := t.inside(id, "read", "/workspace/plain/file").of("/workspace/plain/file")
	t.control(err == nil && strings.Contains(seen.Detail, "brought in"), "put a plain file", fmt.Sprint(err, say(seen)))
	planted := t.inside(id, "plant", sandbox.WorkspaceDir, secret)
	t.must(t.sh(id, "cd /workspace; echo original > original; ln original twin; ln -s "+outside+"/made dangling"))
	for _, name := range []string{"symlink", "fifo", "socket", "twin", "dangling", "symlinked/secret", "symlinked/made",
		"symlinked/way/made"} {
		err := t.putIn(id, "/workspace/"+name, "brought in")
		left, _ := os.ReadDir(outside)
		text, _ := os.ReadFile(secret)
		original := t.inside(id, "read", "/workspace/original").of("/workspace/original")
		through := len(left) != 1 || string(text) != "the host's" || !strings.Contains(original.Detail, "original")
		got := map[bool]string{true: "written through: something else was changed", false: "not followed"}[through]
		if err != nil {
			got += ": " + err.Error()
		}
		t.judge(!through && (err != nil) == (filepath.Dir(name) != "."), "put over its "+name, got, "a plain file: put")
	}
	t.control(planted.of("symlink").OK() && planted.of("fifo").OK(), "plant something", say(planted.of("symlink")))
}
