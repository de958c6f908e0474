package verify

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// repository is a git work tree for a test.
type repository struct {
	t   *testing.T
	dir string
}

func newRepository(t *testing.T, tree map[string]string) repository {
	t.Helper()
	r := repository{t, t.TempDir()}
	r.git("init", "-q", "-b", "main")
	writeTree(t, r.dir, tree)
	r.git("add", "-A")
	r.git("commit", "-q", "-m", "first")
	return r
}

func (r repository) run(args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "protocol.file.allow=always"}, args...)...)
	cmd.Dir = r.dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (r repository) git(args ...string) {
	r.t.Helper()
	if out, err := r.run(args...); err != nil {
		r.t.Fatalf("git %v: %v: %s", args, err, out)
	}
}

// state is a digest of everything in the work tree and in its git directory.
func (r repository) state() string {
	h := sha256.New()
	err := filepath.WalkDir(r.dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		fmt.Fprintln(h, p, st.Mode(), st.ModTime())
		if st.Mode().IsRegular() {
			text, err := os.ReadFile(p)
			fmt.Fprintf(h, "%s %v\n", text, err)
		}
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// changes returns the change of the work tree since a revision, or of the index. It checks that nothing is written.
func (r repository) changes(base string) *Change {
	r.t.Helper()
	before := r.state()
	g, err := OpenRepository(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() {
		g.Close()
		if _, err := os.Stat(g.dir); err == nil {
			r.t.Errorf("%s is left", g.dir)
		}
		if r.state() != before {
			r.t.Error("the repository was written to")
		}
	}()
	var c *Change
	if base == "" {
		c, err = g.Staged(r.t.Context())
	} else {
		c, err = g.Diff(r.t.Context(), base, readTree(r.t, r.dir))
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r repository) check(base, changed, deleted, conflicts string) {
	r.t.Helper()
	c := r.changes(base)
	slices.Sort(c.Changed)
	if a, b, d := strings.Join(c.Changed, " "), strings.Join(c.Deleted, " "), strings.Join(c.Conflicts, " "); a != changed || b != deleted || d != conflicts {
		r.t.Errorf("%s: changed %q, deleted %q, conflicts %q; want %q, %q, %q", base, a, b, d, changed, deleted, conflicts)
	}
}

func TestRepository(t *testing.T) {
	r := newRepository(t, map[string]string{"a.py": "1\n", "b.py": "2\n", "sub/c.py": "3\n", "d e\tf.py": "4\n"})
	r.check("", "", "", "")
	r.check("HEAD", "", "", "")
	writeTree(t, r.dir, map[string]string{"a.py": "staged\n"})
	r.git("add", "a.py")
	r.git("mv", "b.py", "renamed.py")
	r.git("rm", "-q", "sub/c.py")
	writeTree(t, r.dir, map[string]string{"a.py": "more\n", "new.py": "5\n"})
	r.check("", "a.py renamed.py", "b.py sub/c.py", "")
	r.check("HEAD", "a.py new.py renamed.py", "b.py sub/c.py", "")
	if f := r.changes("").Request.Files; string(f[0].Data) != "staged\n" || f[0].Path != "a.py" {
		t.Errorf("%q", f[0].Data)
	}
	r.git("commit", "-q", "-m", "second")
	r.git("pack-refs", "--all")
	r.git("gc", "-q")
	r.check("", "", "", "")
	r.check("HEAD~1", "a.py new.py renamed.py", "b.py sub/c.py", "")
	r.check("main", "a.py new.py", "", "")
	g, err := OpenRepository(filepath.Join(r.dir, "sub/.."))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for _, revision := range []string{"none", "--output=x", "-h", "HEAD:a.py", "a\nb", ""} {
		if _, err := g.Diff(t.Context(), revision, nil); err == nil {
			t.Errorf("the revision %q is accepted", revision)
		}
	}
	if _, err := OpenRepository("/proc/self"); err == nil {
		t.Error("/proc is a work tree")
	}
}

func TestRepositoryStates(t *testing.T) {
	t.Run("no commit", func(t *testing.T) {
		r := repository{t, t.TempDir()}
		r.git("init", "-q")
		r.check("", "", "", "")
		writeTree(t, r.dir, map[string]string{"a.py": "1\n"})
		r.git("add", "a.py")
		r.check("", "a.py", "", "")
		r.check("HEAD", "a.py", "", "")
	})
	t.Run("conflict", func(t *testing.T) {
		r := newRepository(t, map[string]string{"a.py": "1\n", "b.py": "1\n"})
		r.git("checkout", "-q", "-b", "other")
		writeTree(t, r.dir, map[string]string{"a.py": "2\n"})
		r.git("commit", "-qam", "two")
		r.git("checkout", "-q", "main")
		writeTree(t, r.dir, map[string]string{"a.py": "3\n"})
		r.git("commit", "-qam", "three")
		if _, err := r.run("merge", "other"); err == nil {
			t.Fatal("the branches merge")
		}
		r.check("", "", "", "a.py")
		r.check("HEAD", "a.py", "", "a.py")
	})
	t.Run("submodule", func(t *testing.T) {
		inner := newRepository(t, map[string]string{"x.py": "1\n"})
		r := newRepository(t, map[string]string{"a.py": "1\n"})
		r.git("submodule", "--quiet", "add", inner.dir, "inner")
		if err := os.Symlink("/etc/passwd", filepath.Join(r.dir, "link")); err != nil {
			t.Fatal(err)
		}
		r.git("add", "-A")
		r.check("", ".gitmodules", "", "")
		if sub := (repository{t, filepath.Join(r.dir, "inner")}); true {
			sub.check("", "", "", "")
		}
	})
	t.Run("linked work tree", func(t *testing.T) {
		r := newRepository(t, map[string]string{"a.py": "1\n"})
		at := filepath.Join(t.TempDir(), "linked")
		r.git("worktree", "add", "-q", at)
		writeTree(t, at, map[string]string{"a.py": "2\n"})
		repository{t, at}.check("HEAD", "a.py", "", "")
	})
	t.Run("SHA-256", func(t *testing.T) {
		r := repository{t, t.TempDir()}
		r.git("init", "-q", "--object-format=sha256")
		writeTree(t, r.dir, map[string]string{"a.py": "1\n", "b.py": "1\n"})
		r.git("add", "-A")
		r.git("commit", "-qm", "first")
		writeTree(t, r.dir, map[string]string{"a.py": "2\n"})
		r.check("HEAD", "a.py", "", "")
		r.check("", "", "", "")
	})
	t.Run("many files", func(t *testing.T) {
		tree := map[string]string{}
		for i := range 3000 {
			tree[fmt.Sprintf("d%d/%d.txt", i%50, i)] = strings.Repeat(fmt.Sprintln(i), 20)
		}
		r := newRepository(t, map[string]string{"a.py": "1\n"})
		writeTree(t, r.dir, tree)
		r.git("add", "-A")
		if c := r.changes(""); len(c.Changed) != 3000 {
			t.Error(len(c.Changed))
		}
	})
}

// A repository whose configuration names commands of the host for everything that git can call.
func TestHostileRepository(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "executed")
	command := filepath.Join(t.TempDir(), "command")
	if err := os.WriteFile(command, []byte("#!/bin/sh\ntouch "+mark+"\ncat\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := newRepository(t, map[string]string{"a.py": "1\n", "b.py": "1\n"})
	for name, value := range map[string]string{
		"core.fsmonitor": command, "core.hooksPath": filepath.Dir(command), "core.sshCommand": command, "core.pager": command, "core.editor": command,
		"core.gitProxy": command, "core.askPass": command, "core.alternateRefsCommand": command, "diff.external": command,
		"diff.evil.command": command, "diff.evil.textconv": command, "filter.evil.clean": command, "filter.evil.smudge": command,
		"filter.evil.process": command, "filter.evil.required": "true", "merge.evil.driver": command, "credential.helper": command, "gpg.program": command,
		"alias.rev-parse": "!" + command, "alias.ls-files": "!" + command, "pager.ls-tree": command, "uploadpack.packObjectsHook": command,
		"remote.origin.url": "ext::" + command, "remote.origin.promisor": "true", "remote.origin.uploadpack": command, "extensions.partialClone": "origin",
		"protocol.ext.allow": "always",
	} {
		r.git("config", name, value)
	}
	for _, hook := range []string{"pre-commit", "post-index-change", "fsmonitor-watchman", "reference-transaction", "post-checkout"} {
		if err := os.WriteFile(filepath.Join(r.dir, ".git/hooks", hook), []byte("#!/bin/sh\ntouch "+mark+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writeTree(t, r.dir, map[string]string{".gitattributes": "* filter=evil diff=evil merge=evil\n", "a.py": "2\n", ".git/info/attributes": "* filter=evil\n"})
	// The control: git itself executes the command.
	if _, _ = r.run("status"); !exists(mark) {
		t.Fatal("git status does not execute the command")
	}
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
	r.check("HEAD", ".gitattributes a.py", "", "")
	r.check("", "", "", "")
	// An object that is missing is not fetched.
	id, err := r.run("-c", "core.fsmonitor=", "rev-parse", "HEAD:b.py")
	if err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(mark)
	object := filepath.Join(r.dir, ".git/objects", id[:2], strings.TrimSpace(id[2:]))
	if err := os.Remove(object); err != nil {
		t.Fatal(err)
	}
	g, err := OpenRepository(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := g.Staged(t.Context()); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("%v", err)
	}
	if exists(mark) {
		t.Error("a command of the repository was executed")
	}
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
