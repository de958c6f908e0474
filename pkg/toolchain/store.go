package toolchain

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// absent is the stamp of a path that does not exist.
const absent = "-"

// trail lists the paths that a search read, with their stamps.
type trail struct{ seen []string } // path, stamp, path, stamp, …

func (t *trail) add(paths ...string) {
	for _, p := range paths {
		t.put(p, stampOf)
	}
}

// place adds a directory by its identity: changes of its content do not count.
func (t *trail) place(p string) { t.put(p, identityOf) }

func (t *trail) put(p string, stamp func(string) string) {
	for i := 0; i < len(t.seen); i += 2 {
		if t.seen[i] == p {
			return
		}
	}
	t.seen = append(t.seen, p, stamp(p))
}

// record is what is kept of a search.
type record struct {
	Name   string
	Key    string
	Tool   *Toolchain
	Stamps []string
}

// holds reports whether all stamps still match.
func (r *record) holds() bool {
	for i := 0; i+1 < len(r.Stamps); i += 2 {
		stamp := stampOf
		if strings.HasPrefix(r.Stamps[i+1], "=") {
			stamp = identityOf
		}
		if stamp(r.Stamps[i]) != r.Stamps[i+1] {
			return false
		}
	}
	return true
}

// isValid reports whether a search can have written the record.
func (r *record) isValid() bool {
	if r.Tool == nil || r.Tool.Name != r.Name || r.Tool.ID == "" {
		return false
	}
	if strings.HasPrefix(r.Key, imageKey) { // the path is one of the image, or a name
		return r.Tool.Path != "" && len(r.Stamps) == 0
	}
	return filepath.IsAbs(r.Tool.Path) && len(r.Stamps) > 0 && len(r.Stamps)%2 == 0
}

// A store is one JSON document with a record per line, so that a reader decodes only the record that it needs. A record is a flat list of
// strings (see encode): for structs encoding/json first inspects the types by reflection, which takes a new process three times as long
// as the rest of a lookup.
//
//	{"sandbox-run toolchains":1,"records":[
//	["go","1f…","1.26.0","/usr/local/go/bin/go", …],
//	["python","1f…","3.11.7", …]
//	]}
const (
	storeHead = `{"sandbox-run toolchains":1,"records":[` + "\n"
	storeTail = "\n]}\n"
	maxStore  = 1 << 20
	// maxRecords bounds the records, of which every PATH has its own. The oldest are dropped.
	maxRecords = 64
)

type store struct{ path string } // "" keeps nothing

// systemCache is the cache directory of root, which scratch disks share.
const systemCache = "/var/cache/sandbox-run"

// DefaultStore returns the path of a user's store of toolchains: toolchains.json in the user's cache directory.
func DefaultStore() string { return defaultStore(os.Getenv("XDG_CACHE_HOME"), os.Getenv("HOME")) }

func defaultStore(cache, home string) string {
	switch {
	case os.Geteuid() == 0:
		return systemCache + "/toolchains.json"
	case filepath.IsAbs(cache):
		return filepath.Join(cache, "sandbox-run", "toolchains.json")
	case filepath.IsAbs(home):
		return filepath.Join(home, ".cache", "sandbox-run", "toolchains.json")
	}
	if dir, err := os.UserCacheDir(); err == nil { // for example macOS
		return filepath.Join(dir, "sandbox-run", "toolchains.json")
	}
	return ""
}

func (f *Finder) store(env map[string]string) store {
	switch {
	case f.NoStore:
		return store{}
	case f.Store != "":
		return store{f.Store}
	}
	return store{defaultStore(env["XDG_CACHE_HOME"], env["HOME"])}
}

// lines returns the undecoded records. A store that is damaged, too large, of another version or of another user has none.
func (s store) lines() [][]byte {
	if s.path == "" {
		return nil
	}
	data, err := readOwn(s.path, maxStore)
	if err != nil || !bytes.HasPrefix(data, []byte(storeHead)) || !bytes.HasSuffix(data, []byte(storeTail)) ||
		len(data) < len(storeHead)+len(storeTail) {
		return nil
	}
	return bytes.Split(data[len(storeHead):len(data)-len(storeTail)], []byte(",\n"))
}

// head returns the beginning of a record's line.
func head(name, key string) []byte { return []byte(`["` + name + `","` + key + `",`) }

func (s store) read(name, key string) *record {
	for _, line := range s.lines() {
		if !bytes.HasPrefix(line, head(name, key)) {
			continue
		}
		if r := decode(line); r != nil && r.Name == name && r.Key == key && r.isValid() {
			return r
		}
		return nil
	}
	return nil
}

// encode returns a record as one list: single values, then each collection after its length, then the stamps.
func (r *record) encode() ([]byte, error) {
	t := r.Tool
	words := []string{r.Name, r.Key, t.Version, t.Path, t.Home, t.ID, t.Found}
	for _, part := range []map[string]string{t.Programs, t.Env} {
		words = append(words, strconv.Itoa(len(part)))
		for _, k := range slices.Sorted(maps.Keys(part)) {
			words = append(words, k, part[k])
		}
	}
	words = append(words, strconv.Itoa(len(t.Mounts)))
	for _, m := range t.Mounts {
		words = append(words, m.Source, m.Target)
	}
	words = append(words, strconv.Itoa(len(t.Skipped)))
	words = append(words, t.Skipped...)
	return json.Marshal(append(words, r.Stamps...))
}

// decode reads a record that encode wrote. It returns nil for any other text.
func decode(line []byte) *record {
	words, ok := list(line)
	next := func() (word string) {
		if len(words) == 0 {
			ok = false
			return ""
		}
		word, words = words[0], words[1:]
		return word
	}
	count := func() int {
		n, err := strconv.Atoi(next())
		if err != nil || n < 0 || n > len(words) {
			ok = false
			return 0
		}
		return n
	}
	pairs := func() map[string]string {
		n := count()
		if n == 0 {
			return nil
		}
		m := make(map[string]string, n)
		for range n {
			k := next()
			m[k] = next()
		}
		return m
	}
	t := &Toolchain{Name: next()}
	r := &record{Name: t.Name, Key: next(), Tool: t}
	t.Version, t.Path, t.Home, t.ID, t.Found = next(), next(), next(), next(), next()
	t.Programs, t.Env = pairs(), pairs()
	for range count() {
		source := next()
		t.Mounts = append(t.Mounts, sandbox.Mount{Source: source, Target: next()})
	}
	for range count() {
		t.Skipped = append(t.Skipped, next())
	}
	if r.Stamps = words; !ok {
		return nil
	}
	return r
}

// list parses a JSON list of strings. A list without escapes, the common case, is only split.
func list(line []byte) (words []string, ok bool) {
	if bytes.IndexByte(line, '\\') >= 0 {
		return words, json.Unmarshal(line, &words) == nil
	}
	text, opened := strings.CutPrefix(string(line), `["`)
	text, closed := strings.CutSuffix(text, `"]`)
	if !opened || !closed {
		return nil, false
	}
	return strings.Split(text, `","`), true
}

// write puts a record first, in place of one with the same key, and replaces the whole file. A record that another process writes at the
// same time may be lost; then the next search repeats it.
func (s store) write(r *record) {
	if s.path == "" {
		return
	}
	line, err := r.encode()
	if err != nil {
		return
	}
	kept := slices.DeleteFunc(s.lines(), func(old []byte) bool { return bytes.HasPrefix(old, head(r.Name, r.Key)) || !json.Valid(old) })
	kept = slices.Insert(kept, 0, line)
	size := len(storeHead) + len(storeTail)
	for i, k := range kept {
		if size += len(k) + 2; i == maxRecords || size > maxStore {
			kept = kept[:i]
			break
		}
	}
	data := slices.Concat([]byte(storeHead), bytes.Join(kept, []byte(",\n")), []byte(storeTail))
	_ = s.replace(data)
}

func (s store) replace(data []byte) error {
	dir := filepath.Dir(s.path)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".toolchains-*") // mode 0600, always a new file
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if closing := tmp.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(tmp.Name(), s.path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}
