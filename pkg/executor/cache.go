package executor

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Cache keeps the products of compilers, by a digest of everything they depend on. Any number of processes may share a cache:
// entries appear complete, by a rename, and never change. Only the user may be able to write to its directory, because sandboxes
// run its files.
type Cache struct {
	Dir   string
	Limit sandbox.Size // of all entries; 0 is 1 GiB. The least recently used entries go first.
}

const (
	defaultCacheLimit = 1 * sandbox.GiB
	maxCachedFiles    = 256 // each is open while it is copied into a sandbox
	manifestName      = "manifest.json"
	// abandoned is the age after which an unfinished entry is removed.
	abandoned = time.Hour
	// addedName is a file that grows with each addition; see grew.
	addedName = "added"
)

func (c *Cache) limit() sandbox.Size { return cmp.Or(c.Limit, defaultCacheLimit) }

// slack is how many bytes processes may add before the cache counts all entries again. Counting takes longer than storing most
// entries, so it is rare; that much space stays free, and the limit holds in between.
func (c *Cache) slack() sandbox.Size { return c.limit() / 32 }

// most is the size of the largest entry that the cache accepts.
func (c *Cache) most() sandbox.Size { return c.limit() / 4 }

// key returns the digest of everything that a phase's products depend on: the toolchain, the command, its variables, and every
// file of the program (contents is their digest). Inputs are not in the sandbox yet during a compilation.
func (p *Plan) key(phase *Phase, contents string) string {
	h := sha256.New()
	field := fieldsOf(h)
	field("sandbox-run compile 3")
	field(p.Language)
	field(p.Version)
	field(p.toolchain)
	field(p.tenant)
	for _, list := range [][]string{phase.Process.Args, phase.Produces} {
		field(strconv.Itoa(len(list)))
		for _, s := range list {
			field(s)
		}
	}
	for _, env := range []map[string]string{p.Spec.Env, phase.Process.Env} {
		field(strconv.Itoa(len(env)))
		for _, k := range slices.Sorted(maps.Keys(env)) {
			field(k)
			field(env[k])
		}
	}
	field(phase.Process.Workdir)
	field(p.Spec.Hostname)
	for _, m := range p.Spec.Root.Add {
		field(m.Source)
		field(m.Target)
	}
	field(contents)
	return hex.EncodeToString(h.Sum(nil))
}

// fieldsOf returns a function that writes a field after its length, so that no two lists of fields have the same bytes.
func fieldsOf(h io.Writer) func(string) {
	return func(s string) {
		_ = binary.Write(h, binary.LittleEndian, uint64(len(s)))
		_, _ = io.WriteString(h, s)
	}
}

// contents returns the digest of every file of the program.
func (p *Plan) contents() (string, error) {
	h := sha256.New()
	field := fieldsOf(h)
	for _, f := range p.Files[:p.program] {
		field(f.Path)
		field(strconv.FormatUint(uint64(f.Mode), 8))
		if err := digestContent(f, field); err != nil {
			return "", fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return string(h.Sum(nil)), nil
}

// mayChange reports whether files are read again each time.
func (p *Plan) mayChange() bool {
	return slices.ContainsFunc(p.Files[:p.program], func(f sandbox.File) bool { return f.Open != nil })
}

// digestContent adds the digest of a file's content, so that the length need not be known beforehand.
func digestContent(f sandbox.File, field func(string)) error {
	if f.Link != "" {
		field("link")
		field(f.Link)
		return nil
	}
	if f.Open == nil {
		sum := sha256.Sum256(f.Data)
		field(string(sum[:]))
		return nil
	}
	r, err := f.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	one := sha256.New()
	if _, err := io.Copy(one, r); err != nil {
		return err
	}
	field(string(one.Sum(nil)))
	return nil
}

// manifest lists the files of an entry; their contents are files beside it, named by number.
type manifest struct {
	Files []manifestFile `json:"files"`
}

type manifestFile struct {
	Path string      `json:"path"`
	Mode fs.FileMode `json:"mode"`
	Size int64       `json:"size"`
}

func (c *Cache) dir(key string) string { return filepath.Join(c.Dir, key[:2], key) }

// closeFiles closes the files that get has opened. Some are closed already, which does no harm.
func closeFiles(files []sandbox.File) {
	for _, f := range files {
		if r, err := f.Open(); err == nil {
			_ = r.Close()
		}
	}
}

// get returns the open files of an entry. A damaged entry counts as absent.
func (c *Cache) get(key string) ([]sandbox.File, bool) {
	if prepared.CheckOwned(c.Dir) != nil {
		return nil, false // put reports the reason
	}
	dir := c.dir(key)
	text, err := readManifestFile(filepath.Join(dir, manifestName))
	if err != nil {
		return nil, false
	}
	var m manifest
	if json.Unmarshal(text, &m) != nil || len(m.Files) == 0 {
		return nil, false
	}
	var files []sandbox.File
	for i, f := range m.Files {
		// Opened here, because another process may remove the entry at any time.
		content, err := prepared.OpenRegular(filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			closeFiles(files)
			return nil, false
		}
		files = append(files, sandbox.File{Path: f.Path, Mode: f.Mode, Open: func() (io.ReadCloser, error) { return content, nil }})
		if st, err := content.Stat(); err != nil || st.Size() != f.Size {
			closeFiles(files)
			return nil, false // truncated by a power failure
		}
	}
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // last use; on failure the entry only goes a little sooner
	return files, true
}

// maxManifest bounds the list of an entry's files.
const maxManifest = 4 << 20

func readManifestFile(name string) ([]byte, error) {
	f, err := prepared.OpenRegular(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxManifest))
}

// entry is an entry in the making.
type entry struct {
	c    *Cache
	dir  string // until commit renames it
	key  string
	done bool
	m    manifest
}

func (c *Cache) begin(key string) (*entry, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := prepared.CheckOwned(c.Dir); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(c.Dir, "new-")
	if err != nil {
		return nil, err
	}
	return &entry{c: c, dir: dir, key: key}, nil
}

func (e *entry) add(f sandbox.File, r io.Reader) (err error) {
	out, err := os.OpenFile(filepath.Join(e.dir, strconv.Itoa(len(e.m.Files))), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	n, err := io.Copy(out, r)
	e.m.Files = append(e.m.Files, manifestFile{Path: f.Path, Mode: f.Mode, Size: n})
	return err
}

// commit renames the entry to its name. An equal entry of another process serves as well.
func (e *entry) commit() error {
	if len(e.m.Files) == 0 {
		return errors.New("nothing was made")
	}
	text, err := json.Marshal(e.m)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(e.dir, manifestName), text, 0o600); err != nil {
		return err
	}
	to := e.c.dir(e.key)
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	if err := os.Rename(e.dir, to); err != nil {
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
		if files, whole := e.c.get(e.key); whole {
			closeFiles(files)
			return nil
		}
		// The existing entry is damaged.
		if err := removeEntry(to); err != nil {
			return err
		}
		if err := os.Rename(e.dir, to); err != nil {
			return err
		}
	}
	e.done = true
	size := int64(len(text))
	for _, f := range e.m.Files {
		size += f.Size
	}
	return e.c.grew(size)
}

// grew counts the additions since the last full count: one byte in a file for each started part of the slack. Appending needs no
// lock between processes. grew trims the cache when the slack is used up.
func (c *Cache) grew(size int64) error {
	f, err := os.OpenFile(filepath.Join(c.Dir, addedName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	part := max(1, int64(c.slack())/512)
	if _, err := f.Write(make([]byte, size/part+1)); err != nil {
		return err
	}
	if st, err := f.Stat(); err != nil || st.Size()*part < int64(c.slack()) {
		return err
	}
	if err := f.Truncate(0); err != nil { // before the count, which may miss later additions
		return err
	}
	return c.trim()
}

// abandon removes an entry without a name. It may be called after commit.
func (e *entry) abandon() {
	if !e.done {
		_ = removeEntry(e.dir) // the next trim removes it
	}
}

// removeEntry removes a directory of regular files.
func removeEntry(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := os.Remove(filepath.Join(dir, f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Remove(dir)
}

// trim removes the least recently used entries until the rest is within the limit minus the slack, and the abandoned entries of
// other processes.
func (c *Cache) trim() error {
	type kept struct {
		dir  string
		used time.Time
		size int64
	}
	var all []kept
	var total int64
	groups, err := os.ReadDir(c.Dir)
	if err != nil {
		return err
	}
	for _, g := range groups {
		path := filepath.Join(c.Dir, g.Name())
		if g.Name() == addedName {
			continue
		}
		if len(g.Name()) != 2 {
			if st, err := g.Info(); err == nil && time.Since(st.ModTime()) > abandoned {
				_ = removeEntry(path)
			}
			continue
		}
		entries, _ := os.ReadDir(path)
		for _, d := range entries {
			k := kept{dir: filepath.Join(path, d.Name())}
			if st, err := d.Info(); err == nil {
				k.used = st.ModTime()
			}
			files, _ := os.ReadDir(k.dir)
			for _, f := range files {
				if st, err := f.Info(); err == nil {
					k.size += st.Size()
				}
			}
			total += k.size
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(a, b kept) int { return a.used.Compare(b.used) })
	for _, k := range all {
		if total <= int64(c.limit()-c.slack()) {
			break
		}
		if err := removeEntry(k.dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			total -= k.size
		}
	}
	return nil
}
