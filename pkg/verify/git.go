package verify

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // the names of git's objects
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Repository is a git work tree that is read and never written to. The git command never sees the repository's own directory, whose
// configuration could name commands of the host (fsmonitor, filters, textconv, hooks, ssh): it reads the objects and a copy of the index
// through a git directory of ours, which is empty otherwise.
type Repository struct {
	Top string // of the work tree

	dir    string // of ours
	common string // that of the repository with objects and references
	sha256 bool
}

// Bounds of what is read of a repository.
const (
	maxReferences = 100_000
	maxGitFile    = 16 << 20 // bytes of HEAD, of packed-refs
	maxGitIndex   = 256 << 20
	maxTreeBytes  = 256 << 20
)

// OpenRepository finds the work tree that a directory is in. The caller closes it.
func OpenRepository(dir string) (*Repository, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	top := abs
	for {
		if _, err := os.Lstat(filepath.Join(top, ".git")); err == nil {
			break
		}
		if top == filepath.Dir(top) {
			return nil, sandbox.Invalid("verify", "%s is in no git work tree", dir)
		}
		top = filepath.Dir(top)
	}
	r := &Repository{Top: top}
	own, err := gitDir(filepath.Join(top, ".git"))
	if err == nil {
		r.common = own
		if text, e := readGit(filepath.Join(own, "commondir")); e == nil {
			r.common = resolve(own, strings.TrimSpace(text))
		}
		r.dir, err = os.MkdirTemp("", "sandbox-run-git-")
	}
	if err == nil {
		err = r.fill(own)
	}
	if err != nil {
		r.Close()
		return nil, &sandbox.Error{Op: "read the repository " + top, Kind: sandbox.ErrInvalid, Err: err}
	}
	return r, nil
}

// Close removes the git directory of ours. It may be called twice.
func (r *Repository) Close() {
	if r.dir != "" {
		_ = os.RemoveAll(r.dir) //nolint:forbidigo // files of ours; no sandbox reaches them
	}
}

// gitDir returns the git directory that .git is or names.
func gitDir(at string) (string, error) {
	st, err := os.Stat(at)
	if err != nil || st.IsDir() {
		return at, err
	}
	text, err := readGit(at)
	if err != nil {
		return "", err
	}
	name, ok := strings.CutPrefix(strings.TrimSpace(text), "gitdir: ")
	if !ok {
		return "", errors.New(".git is neither a directory nor the name of one")
	}
	return resolve(filepath.Dir(at), name), nil
}

func resolve(dir, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

// readGit reads a small regular file of a git directory.
func readGit(name string) (string, error) {
	f, err := openRegular(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxGitFile))
	return string(text), err
}

func openRegular(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, f.Close(), fmt.Errorf("%s is not a regular file", name))
	}
	return f, nil
}

var (
	objectName    = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	referenceName = regexp.MustCompile(`^(HEAD|refs/[^\x00-\x20\x7f~^:?*\[\\]+)$`)
)

// fill makes the git directory of ours: the references and the index are copied, and the objects are named. own is the directory of the
// work tree, which has its HEAD and its index.
func (r *Repository) fill(own string) error {
	refs, err := r.references()
	if err != nil {
		return err
	}
	head, err := readGit(filepath.Join(own, "HEAD"))
	if err != nil {
		return err
	}
	head = strings.TrimSpace(head)
	target, symbolic := strings.CutPrefix(head, "ref: ")
	if symbolic && !referenceName.MatchString(target) || !symbolic && !objectName.MatchString(head) {
		return errors.New("HEAD is not a reference")
	}
	var packed strings.Builder
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		packed.WriteString(refs[name] + " " + name + "\n")
		r.sha256 = r.sha256 || len(refs[name]) == 64
	}
	config := "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
	if r.sha256 {
		config = "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectformat = sha256\n"
	}
	for name, text := range map[string]string{"HEAD": head + "\n", "packed-refs": packed.String(), "config": config} {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(r.dir, "refs"), 0o700), os.Mkdir(filepath.Join(r.dir, "objects"), 0o700)); err != nil {
		return err
	}
	index := filepath.Join(own, "index")
	if asked := os.Getenv("GIT_INDEX_FILE"); asked != "" { // of git commit FILE, which calls a hook
		index = resolve(r.Top, asked)
	}
	names := map[string]string{index: "index"}
	shared, _ := filepath.Glob(filepath.Join(own, "sharedindex.*"))
	for _, name := range shared {
		names[name] = filepath.Base(name)
	}
	for from, to := range names {
		if err := copyGit(filepath.Join(r.dir, to), from); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func copyGit(to, from string) error {
	f, err := openRegular(from)
	if err != nil {
		return err
	}
	defer f.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, io.LimitReader(f, maxGitIndex))
	return errors.Join(err, w.Close())
}

// references reads the references of the repository: those that are files count before the packed ones.
func (r *Repository) references() (map[string]string, error) {
	refs := map[string]string{}
	packed, err := readGit(filepath.Join(r.common, "packed-refs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(packed) {
		id, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if objectName.MatchString(id) && referenceName.MatchString(name) && len(refs) < maxReferences {
			refs[name] = id
		}
	}
	err = filepath.WalkDir(filepath.Join(r.common, "refs"), func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || len(refs) >= maxReferences {
			return err
		}
		rel, err := filepath.Rel(r.common, p)
		name := filepath.ToSlash(rel)
		if err != nil || !referenceName.MatchString(name) {
			return err
		}
		text, err := readGit(p)
		if id := strings.TrimSpace(text); err == nil && objectName.MatchString(id) {
			refs[name] = id
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return refs, err
}

// git runs the git command on the git directory of ours. Its environment has nothing of the user's but PATH.
func (r *Repository) git(ctx context.Context, stdin io.Reader, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = r.dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + r.dir, "LC_ALL=C", "GIT_DIR=" + r.dir, "GIT_INDEX_FILE=" + filepath.Join(r.dir, "index"),
		"GIT_OBJECT_DIRECTORY=" + filepath.Join(r.common, "objects"), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull,
		"GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1", "GIT_NO_REPLACE_OBJECTS=1", "GIT_TERMINAL_PROMPT=0", "GIT_ATTR_NOSYSTEM=1",
		"GIT_ALLOW_PROTOCOL=none",
	}
	cmd.Stdin = stdin
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, &sandbox.Error{Op: "verify", Kind: sandbox.ErrUnsupported, Err: errors.New("git is not installed"), Hint: "apt-get install git"}
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, &sandbox.Error{Op: "git " + args[0], Kind: sandbox.ErrInvalid, Err: errors.New(strings.TrimSpace(errs.String()))}
	}
	return out.Bytes(), nil
}

// entry is a file of a tree or of the index.
type entry struct {
	mode, id string
	stage    string
}

// Modes of entries.
const (
	modeExecutable = "100755"
	modeLink       = "120000"
	modeSubmodule  = "160000"
)

// tree returns the files of a revision; HEAD without a commit has none.
func (r *Repository) tree(ctx context.Context, revision string) (map[string]entry, error) {
	if strings.HasPrefix(revision, "-") || strings.ContainsAny(revision, "\x00\n") {
		return nil, sandbox.Invalid("diff", "%q is no revision", revision)
	}
	id, err := r.git(ctx, nil, "rev-parse", "--verify", "--quiet", "--end-of-options", revision+"^{tree}")
	if err != nil && ctx.Err() == nil && revision == "HEAD" {
		return map[string]entry{}, nil
	}
	if err != nil {
		return nil, errors.Join(sandbox.Invalid("diff", "%q is no revision of the repository", revision), context.Cause(ctx))
	}
	return r.list(ctx, "ls-tree", "-r", "-z", "--full-tree", strings.TrimSpace(string(id)))
}

// index returns the files of the index. A file with a merge conflict has a stage.
func (r *Repository) index(ctx context.Context) (map[string]entry, error) {
	return r.list(ctx, "ls-files", "--stage", "-z")
}

func (r *Repository) list(ctx context.Context, args ...string) (map[string]entry, error) {
	out, err := r.git(ctx, nil, args...)
	if err != nil {
		return nil, err
	}
	all := map[string]entry{}
	for line := range strings.SplitSeq(string(out), "\x00") {
		about, name, ok := strings.Cut(line, "\t")
		words := strings.Fields(about)
		if !ok || len(words) != 3 {
			continue
		}
		e := entry{mode: words[0], id: words[1], stage: words[2]}
		if args[0] == "ls-tree" { // mode, type, id
			e.id, e.stage = words[2], "0"
		}
		all[name] = e
	}
	return all, nil
}

// blobs reads the contents of objects.
func (r *Repository) blobs(ctx context.Context, ids []string) (map[string][]byte, error) {
	if len(ids) == 0 {
		return map[string][]byte{}, nil
	}
	out, err := r.git(ctx, strings.NewReader(strings.Join(ids, "\n")+"\n"), "cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)")
	if err != nil {
		return nil, err
	}
	total := int64(0)
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) != 3 || words[1] != "blob" {
			return nil, sandbox.Invalid("verify", "an object of the repository is missing: %.80s", line)
		}
		size, err := strconv.ParseInt(words[2], 10, 64)
		if total += size; err != nil || total > maxTreeBytes {
			return nil, sandbox.Invalid("verify", "the files of the index have more than %s", sandbox.Size(maxTreeBytes))
		}
	}
	if out, err = r.git(ctx, strings.NewReader(strings.Join(ids, "\n")+"\n"), "cat-file", "--batch"); err != nil {
		return nil, err
	}
	all := map[string][]byte{}
	from := bufio.NewReader(bytes.NewReader(out))
	for range ids {
		header, err := from.ReadString('\n')
		words := strings.Fields(header)
		if err != nil || len(words) != 3 {
			return nil, errors.Join(err, fmt.Errorf("git cat-file: %.80q", header))
		}
		size, err := strconv.Atoi(words[2])
		if err != nil {
			return nil, err
		}
		text := make([]byte, size)
		if _, err := io.ReadFull(from, text); err != nil {
			return nil, err
		}
		if _, err := from.Discard(1); err != nil {
			return nil, err
		}
		all[words[0]] = text
	}
	return all, nil
}

// Verify checks a change: what differs from the revision base in the files of c.Request, or what is staged if base is empty.
func (r *Repository) Verify(ctx context.Context, e *executor.Executor, c Change, base string) (*Report, error) {
	var found *Change
	var err error
	if base == "" {
		found, err = r.Staged(ctx)
	} else {
		found, err = r.Diff(ctx, base, c.Request.Files)
	}
	if err != nil {
		return nil, err
	}
	c.Request.Files, c.Changed, c.Deleted, c.Conflicts = found.Request.Files, found.Changed, found.Deleted, found.Conflicts
	return Project(ctx, e, c)
}

// Staged describes the change that the next commit makes: the files of the index, compared with HEAD.
func (r *Repository) Staged(ctx context.Context) (*Change, error) {
	head, err := r.tree(ctx, "HEAD")
	if err != nil {
		return nil, err
	}
	index, err := r.index(ctx)
	if err != nil {
		return nil, err
	}
	c := &Change{}
	var ids []string
	for _, e := range index {
		if e.mode != modeLink && e.mode != modeSubmodule {
			ids = append(ids, e.id)
		}
	}
	slices.Sort(ids)
	texts, err := r.blobs(ctx, slices.Compact(ids))
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(index)) {
		e := index[name]
		switch {
		case e.stage != "0":
			c.Conflicts = append(c.Conflicts, name)
			continue
		case e.mode == modeLink || e.mode == modeSubmodule:
			continue
		}
		f := executor.File{Path: name, Data: texts[e.id]}
		if e.mode == modeExecutable {
			f.Mode = 0o755
		}
		c.Request.Files = append(c.Request.Files, f)
		if head[name] != e {
			c.Changed = append(c.Changed, name)
		}
	}
	c.addDeleted(head, func(name string) bool { _, ok := index[name]; return ok })
	return c, nil
}

// Diff compares files of the work tree, which the caller has read, with a revision.
func (r *Repository) Diff(ctx context.Context, base string, files []executor.File) (*Change, error) {
	old, err := r.tree(ctx, base)
	if err != nil {
		return nil, err
	}
	index, err := r.index(ctx)
	if err != nil {
		return nil, err
	}
	c := &Change{}
	for _, name := range slices.Sorted(maps.Keys(index)) {
		if index[name].stage != "0" {
			c.Conflicts = append(c.Conflicts, name)
		}
	}
	c.Request.Files = files
	for _, f := range files {
		text, err := f.Content()
		if err != nil {
			return nil, err
		}
		if e, ok := old[f.Path]; !ok || e.id != r.blobName(text) {
			c.Changed = append(c.Changed, f.Path)
		}
	}
	top, err := os.OpenRoot(r.Top)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	c.addDeleted(old, func(name string) bool { _, err := top.Lstat(filepath.FromSlash(name)); return err == nil })
	return c, nil
}

func (c *Change) addDeleted(old map[string]entry, isThere func(string) bool) {
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if old[name].mode != modeSubmodule && !isThere(path.Clean(name)) {
			c.Deleted = append(c.Deleted, name)
		}
	}
}

// blobName is the name that git gives to a content.
func (r *Repository) blobName(text []byte) string {
	h := sha1.New() //nolint:gosec // the same
	if r.sha256 {
		h = sha256.New()
	}
	fmt.Fprintf(h, "blob %d\x00", len(text))
	h.Write(text)
	return hex.EncodeToString(h.Sum(nil))
}
