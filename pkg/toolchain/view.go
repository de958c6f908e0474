package toolchain

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// ownDirs are directories of every sandbox's own: a mount of the host can not be below them.
var ownDirs = []string{sandbox.TmpDir, sandbox.WorkspaceDir, sandbox.HomeDir, "/proc", "/dev", "/sys"}

// movedDir is the target of toolchains whose source is below one of ownDirs.
const movedDir = "/opt/sandbox-run"

// nixStore is mounted as a whole: its entries depend on each other by paths that only Nix can list.
const nixStore = "/nix/store"

// Shown reports whether every sandbox shows a path of the host.
func Shown(p string) bool { return withinAny(p, sandbox.HostDirs()) }

// View lists the paths of the host that a toolchain needs in a sandbox.
type View struct {
	image      bool // shows nothing of the host
	name, home string
	nix        string // nixStore; tests set another
	mounts     []sandbox.Mount
	dirs       map[string]bool // sources that are directories
	moved      []sandbox.Mount // directories below ownDirs with their targets
}

// View returns an empty view. The view of an image stays empty: a sandbox shows all of an image.
func (s *Search) View() *View {
	return &View{image: s.image != nil, name: s.d.Name, home: s.env["HOME"], nix: nixStore, dirs: map[string]bool{}}
}

// Show adds a path under each of its names, and the file to which its links lead.
func (v *View) Show(p string) error {
	if v.image {
		return nil
	}
	r, err := resolve(p)
	if err != nil {
		return err
	}
	real := r.real
	if within(real, v.nix) {
		if !v.covers(v.nix) {
			v.mount(v.nix, v.nix, true)
		}
	} else if real == "/" || !Shown(real) && r.info.IsDir() && v.Broad(real) {
		return fmt.Errorf("%s holds more than a toolchain", real)
	}
	isDir := r.info.IsDir()
	if !Shown(real) && !v.covers(real) {
		v.mount(real, v.place(real, isDir), isDir)
	}
	for _, name := range r.via {
		// A name below a mounted directory is a link there as on the host, and needs no mount.
		if !Shown(name) && !withinAny(name, ownDirs) && !v.covers(name) {
			v.mount(real, name, isDir)
		}
	}
	return nil
}

// ShowIfExists adds a path if it exists.
func (v *View) ShowIfExists(p string) error {
	if v.image || !Exists(p) {
		return nil
	}
	return v.Show(p)
}

func (v *View) mount(source, target string, isDir bool) {
	v.mounts = append(v.mounts, sandbox.Mount{Source: source, Target: target})
	if isDir {
		v.dirs[source] = true
	}
}

// covers reports whether a mount contains a path of the host under its own name.
func (v *View) covers(p string) bool {
	return slices.ContainsFunc(v.mounts, func(m sandbox.Mount) bool { return within(p, m.Target) || within(p, m.Source) })
}

// place returns the target of a path: the path itself, unless it is below one of ownDirs.
func (v *View) place(real string, isDir bool) string {
	if !withinAny(real, ownDirs) {
		return real
	}
	root := real
	if !isDir {
		root = filepath.Dir(real)
	}
	v.Together(root)
	return v.inside(real)
}

// Together keeps the paths below a directory together: if the directory has another target in the sandbox, they move with it.
func (v *View) Together(dir string) {
	if !withinAny(dir, ownDirs) || slices.ContainsFunc(v.moved, func(m sandbox.Mount) bool { return within(dir, m.Source) }) {
		return
	}
	target := movedDir + "/" + v.name
	if n := len(v.moved); n > 0 {
		target += "-" + strconv.Itoa(n+1)
	}
	v.moved = append(v.moved, sandbox.Mount{Source: dir, Target: target})
}

// inside returns the path in the sandbox of a path of the host.
func (v *View) inside(p string) string {
	if p == "" || !withinAny(p, ownDirs) {
		return p
	}
	for _, m := range v.moved {
		if within(p, m.Source) {
			return m.Target + strings.TrimPrefix(p, m.Source)
		}
	}
	return p
}

// Broad reports whether a directory contains more than a toolchain: a home directory, a parent of one, or a common directory of installed
// programs. Such a directory has files of other users or other files of the user.
func (v *View) Broad(dir string) bool {
	parent, base := filepath.Split(dir)
	parent = filepath.Clean(parent)
	switch {
	case v.home != "" && within(v.home, dir):
		return true
	case parent == "/home" || parent == "/Users":
		return true
	case parent == "/" && slices.Contains([]string{
		"boot", "data", "etc", "home", "media", "mnt", "nix", "opt", "proc", "root", "run", "snap", "srv", "tmp", "Users", "var", "work",
		"workspace",
	}, base):
		return true
	case parent == "/var" || parent == "/run":
		return true
	}
	return slices.Contains([]string{".local", ".cargo", ".config", ".cache", ".ssh", ".gnupg", ".pyenv", ".rustup", ".nvm", ".asdf", ".sdkman",
		".linuxbrew"}, base)
}

// list returns the mounts without those below others, parents first.
func (v *View) list() []sandbox.Mount {
	var kept []sandbox.Mount
	for _, m := range v.mounts {
		inner := slices.ContainsFunc(v.mounts, func(o sandbox.Mount) bool {
			return o.Target != m.Target && within(m.Target, o.Target) && v.dirs[o.Source]
		})
		if !inner && !slices.Contains(kept, m) {
			kept = append(kept, m)
		}
	}
	slices.SortFunc(kept, func(a, b sandbox.Mount) int {
		return cmp.Or(cmp.Compare(a.Target, b.Target), cmp.Compare(a.Source, b.Source))
	})
	return slices.CompactFunc(kept, func(a, b sandbox.Mount) bool { return a.Target == b.Target })
}

// maxWalk bounds the number of files that unreadable checks. The rest of a larger tree is assumed to be readable.
const maxWalk = 300_000

var errWalked = errors.New("walked enough")

// unreadable lists paths that the sandbox's user, who has no rights on the host, can not read.
func (v *View) unreadable() (paths []string) {
	entries := 0
	for _, m := range v.list() {
		// Paths that every sandbox shows are not checked. Unreadable files below /etc are secrets, which no language needs.
		if m.Source == v.nix || Shown(m.Source) || within(m.Source, "/etc") {
			continue
		}
		_ = filepath.WalkDir(m.Source, func(p string, d fs.DirEntry, err error) error {
			if entries++; entries > maxWalk || len(paths) == 3 {
				return errWalked
			}
			if err != nil { // not readable by this process either
				paths = append(paths, p)
				return fs.SkipDir
			}
			info, err := d.Info()
			if err != nil {
				return nil // removed meanwhile
			}
			switch mode := info.Mode(); {
			case mode.IsDir() && mode&0o005 != 0o005:
				paths = append(paths, p)
				return fs.SkipDir
			case mode.IsDir() && d.Name() == "__pycache__": // Python compiles again what it can not read
				return fs.SkipDir
			case mode.IsRegular() && mode&0o004 == 0 && !strings.HasPrefix(d.Name(), "."):
				paths = append(paths, p)
			}
			return nil
		})
	}
	return paths
}

// Finish completes a toolchain whose paths are those of the host: it adds the libraries of its programs, mounts and the ID, converts
// paths to those inside, and watches the files.
func (s *Search) Finish(t *Toolchain, v *View, found Program, libraries []string, detail ...string) (*Toolchain, error) {
	if s.image != nil {
		return t, nil
	}
	t.Name, t.Found = s.d.Name, found.via[0]
	programs := []string{t.Path}
	for _, p := range t.Programs {
		programs = append(programs, p)
	}
	slices.Sort(programs)
	for _, p := range slices.Compact(programs) {
		r, err := s.Probe(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		if err := v.Show(p); err != nil {
			return nil, err
		}
		if link, to := r.stranded(); p != r.real && link != "" {
			why := fmt.Sprintf("%s is a link to %s, which is the sandbox's own inside", link, to)
			return nil, s.Incomplete(t, why, "another place for it, or a link that is relative")
		}
		libraries = append(libraries, r.real)
		info := r.info
		detail = append(detail, r.real, strconv.FormatInt(info.Size(), 36), strconv.FormatInt(info.ModTime().UnixNano(), 36))
	}
	s.showLibraries(v, libraries)
	unreadable := v.unreadable()
	t.Mounts = v.list()
	for _, m := range t.Mounts {
		if v.dirs[m.Source] {
			s.trail.place(m.Source)
		} else {
			s.trail.add(m.Source)
		}
	}
	t.Path, t.Home = v.inside(t.Path), v.inside(t.Home)
	for role, p := range t.Programs {
		t.Programs[role] = v.inside(p)
	}
	for k, p := range t.Env {
		t.Env[k] = v.inside(p)
	}
	if len(unreadable) > 0 {
		fix := "chmod -R o+rX"
		for _, m := range t.Mounts {
			if slices.ContainsFunc(unreadable, func(p string) bool { return within(p, m.Source) }) && !strings.Contains(fix+" ", " "+m.Source+" ") {
				fix += " " + m.Source
			}
		}
		return nil, s.Incomplete(t, "the sandbox's user can not read "+strings.Join(unreadable, ", "), fix)
	}
	t.sign(detail)
	return t, nil
}

// stranded returns a link whose target is below one of ownDirs, so that it leads nowhere in a sandbox.
func (r *Program) stranded() (link, to string) {
	for _, link := range r.links {
		if to, err := os.Readlink(link); err == nil && filepath.IsAbs(to) && withinAny(to, ownDirs) {
			return link, to
		}
	}
	return "", ""
}

// LinksOut returns the targets of links below a directory that are neither below it nor in every sandbox.
func LinksOut(dir string) (targets []string) {
	entries := 0
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if entries++; entries > maxWalk {
			return errWalked
		}
		if err != nil || d.Type()&fs.ModeSymlink == 0 {
			return nil
		}
		if r, err := resolve(p); err == nil && !Shown(r.real) && !within(r.real, dir) {
			targets = append(targets, r.real)
		}
		return nil
	})
	return targets
}

// Glob returns the paths below a directory that match a pattern. The directory's name is not a pattern. In an image it returns nothing.
func (s *Search) Glob(dir string, pattern ...string) []string {
	if s.image != nil {
		return nil
	}
	quoted := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
	paths, _ := filepath.Glob(filepath.Join(append([]string{quoted}, pattern...)...)) // its only error is that of a bad pattern
	return paths
}
