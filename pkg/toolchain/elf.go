package toolchain

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// linkage is the loader and the libraries that an ELF file needs. debug/elf would add 164 KB (1.4 %) to the thin executable. It finds
// libraries by section headers, which the loader does not need and stripped files may lack, and reads string tables of any size.
type linkage struct {
	interpreter string
	needed      []string
	search      []string // RPATH or RUNPATH, $ORIGIN not replaced
}

var errNotELF = errors.New("not an ELF file of this kind of machine")

// The bounds of reading an untrusted file.
const (
	maxHeaders = 256
	maxDynamic = 4096 // entries
	maxStrings = 1 << 20
)

// readLinkage reads a 64-bit little-endian file, the format of all supported machines.
func readLinkage(r io.ReaderAt) (linkage, error) {
	var l linkage
	var ident [64]byte
	if _, err := r.ReadAt(ident[:], 0); err != nil || string(ident[:4]) != "\x7fELF" || ident[4] != 2 || ident[5] != 1 {
		return l, errNotELF
	}
	le := binary.LittleEndian
	headers, size, count := le.Uint64(ident[32:]), int(le.Uint16(ident[54:])), int(le.Uint16(ident[56:]))
	if size != 56 || count > maxHeaders || headers > 1<<40 {
		return l, errNotELF
	}
	table := make([]byte, size*count)
	if _, err := r.ReadAt(table, int64(headers)); err != nil {
		return l, errNotELF
	}
	type segment struct{ offset, address, size uint64 }
	var loads []segment
	var dynamic, interp segment
	for ; len(table) > 0; table = table[size:] {
		s := segment{le.Uint64(table[8:]), le.Uint64(table[16:]), le.Uint64(table[32:])}
		switch le.Uint32(table) {
		case 1:
			loads = append(loads, s)
		case 2:
			dynamic = s
		case 3:
			interp = s
		}
	}
	read := func(offset, size uint64, most int) []byte {
		if size > uint64(most) || offset > 1<<40 {
			return nil
		}
		b := make([]byte, size)
		n, _ := r.ReadAt(b, int64(offset))
		return b[:n]
	}
	if b, _, ok := bytes.Cut(read(interp.offset, interp.size, 4096), []byte{0}); ok {
		l.interpreter = string(b)
	}
	var strtab, strsize uint64
	var needed, paths []uint64
entries:
	for b := read(dynamic.offset, dynamic.size, maxDynamic*16); len(b) >= 16; b = b[16:] {
		switch tag, value := le.Uint64(b), le.Uint64(b[8:]); tag {
		case 0:
			break entries
		case 1:
			needed = append(needed, value)
		case 5:
			strtab = value
		case 10:
			strsize = value
		case 15, 29:
			paths = append(paths, value)
		}
	}
	var names []byte
	for _, s := range loads {
		if strtab >= s.address && strtab-s.address < s.size {
			names = read(s.offset+strtab-s.address, min(strsize, maxStrings), maxStrings)
			break
		}
	}
	name := func(at uint64) string {
		if at >= uint64(len(names)) {
			return ""
		}
		b, _, _ := bytes.Cut(names[at:], []byte{0})
		return string(b)
	}
	for _, n := range needed {
		if s := name(n); s != "" {
			l.needed = append(l.needed, s)
		}
	}
	for _, p := range paths {
		for _, dir := range strings.Split(name(p), ":") {
			if dir != "" {
				l.search = append(l.search, dir)
			}
		}
	}
	return l, nil
}

func linkageOf(p string) (linkage, error) {
	f, err := os.Open(p)
	if err != nil {
		return linkage{}, err
	}
	defer f.Close()
	return readLinkage(f)
}

// maxLibraries bounds the search for libraries, which links could make endless.
const maxLibraries = 4096

// showLibraries adds the shared libraries of files, and their libraries, unless every sandbox shows them. It ignores a missing library:
// the loader reports it.
func (s *Search) showLibraries(v *View, files []string) {
	type file struct {
		path   string
		search []string // of those that need it
	}
	var queue []file
	for _, p := range files {
		queue = append(queue, file{path: p})
	}
	seen := map[string]bool{}
	configured := sync.OnceValue(func() []string { return loaderDirs("/etc/ld.so.conf", 0) })
	for i := 0; i < len(queue) && i < maxLibraries; i++ {
		p := queue[i].path
		if seen[p] {
			continue
		}
		seen[p] = true
		l, err := linkageOf(p)
		if err != nil {
			continue
		}
		if l.interpreter != "" && filepath.IsAbs(l.interpreter) {
			_ = v.Show(l.interpreter)
		}
		own := slices.Concat(l.searched(p), queue[i].search)
		for _, name := range l.needed {
			for _, dir := range slices.Concat(own, configured()) {
				at := dir + "/" + name
				if strings.ContainsRune(name, '/') {
					at = name
				}
				if !filepath.IsAbs(at) || !Exists(at) {
					continue
				}
				if r, err := resolve(at); err != nil || Shown(r.real) && Shown(r.via[0]) {
					break
				}
				if v.Show(at) == nil {
					queue = append(queue, file{at, own})
				}
				break
			}
		}
	}
}

// loaderDirs returns the directories of ld.so.conf, which the loader searches in addition to usualLibraries.
func loaderDirs(config string, depth int) (dirs []string) {
	data, err := os.ReadFile(config)
	if err != nil || len(data) > maxStrings || depth > 4 {
		return nil
	}
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
		if pattern, ok := strings.CutPrefix(line, "include "); ok {
			files, _ := filepath.Glob(strings.TrimSpace(pattern))
			for _, f := range files {
				dirs = append(dirs, loaderDirs(f, depth+1)...)
			}
		} else if filepath.IsAbs(line) {
			dirs = append(dirs, filepath.Clean(line))
		}
	}
	return dirs
}
