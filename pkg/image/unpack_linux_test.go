package image_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func owned(e entry, uid, gid int) entry {
	e.Uid, e.Gid = uid, gid
	return e
}

func withMode(e entry, mode int64) entry {
	e.Mode = mode
	return e
}

func withXattr(e entry, name, value string) entry {
	records := map[string]string{"SCHILY.xattr." + name: value}
	for k, v := range e.PAXRecords {
		records[k] = v
	}
	e.PAXRecords = records
	return e
}

// ordinaryLayers hold everything that images have and every tar knows.
func ordinaryLayers(t testing.TB) [][]byte {
	long := strings.Repeat("long-name/", 20) + strings.Repeat("n", 200)
	return [][]byte{
		archive(t,
			dir("./", 0o755), dir("./usr/", 0o755), dir("./usr/bin/", 0o755), link("./bin", "usr/bin"), dir("etc", 0o755), dir("etc/conf.d", 0o750),
			withMode(file("usr/bin/tool", "#!/bin/sh\necho tool\n"), 0o755),
			hard("usr/bin/tool2", "usr/bin/tool"), hard("usr/bin/tool3", "./usr/bin/tool2"),
			withMode(file("usr/bin/su", "set-uid"), 0o4755), withMode(file("usr/bin/wall", "set-gid"), 0o2755),
			owned(file("etc/mine", "1234"), 12, 34), owned(link("etc/link", "/etc/mine"), 56, 78), owned(dir("home/user", 0o700), 1234, 1234),
			dir("tmp", 0o1777), dir("var/mail", 0o2775), file("etc/empty", ""), withMode(file("etc/none", "closed"), 0),
			file(long, "a long name"), link("dangling", "../../../etc/passwd"), link("up", ".."), link("self", "self"),
			withXattr(file("etc/attributes", "x"), "user.colour", "blue\x00\xff"), withXattr(dir("etc/attributed", 0o755), "user.dir", "yes"),
			file("etc/a=b c\nnew\\line\xff\xfe", "odd name"), file("etc/ünïcödé", "utf-8"),
			dir("opaque", 0o755), file("opaque/lower", "hidden"), dir("opaque/sub", 0o755), file("opaque/sub/lower", "hidden"),
			file("gone", "x"), dir("gone-dir", 0o755), dir("gone-dir/sub", 0o755), file("gone-dir/sub/file", "x"), link("gone-link", "etc"),
			dir("becomes-link", 0o755), file("becomes-link/file", "x"), link("becomes-dir", "etc"), dir("becomes-file", 0o755),
			file("becomes-file/x", "x"),
			file("file-becomes-dir", "x"), dir("closed", 0o500), file("closed/file", "inside"), dir("closed/deeper", 0),
			file("closed/deeper/file", "inside"),
		),
		archive(t,
			file("bin/through-link", "in usr/bin"), // a parent that is a link, as in merged-/usr images
			hard("etc/across", "usr/bin/tool"),     // across layers
			file("usr/bin/tool3", "on its own now"),
			entry{Typeflag: tar.TypeReg, Name: ".wh.gone"}, entry{Typeflag: tar.TypeReg, Name: ".wh.gone-dir"},
			entry{Typeflag: tar.TypeReg, Name: ".wh.gone-link"},
			entry{Typeflag: tar.TypeReg, Name: "etc/.wh.never-there"}, entry{Typeflag: tar.TypeReg, Name: "no/such/.wh.dir"},
			dir("opaque", 0o711), file("opaque/upper-first", "stays"), dir("opaque/sub", 0o755), file("opaque/sub/upper", "stays"),
			entry{Typeflag: tar.TypeReg, Name: "opaque/.wh..wh..opq"}, file("opaque/upper-after", "stays"),
			link("becomes-link", "etc"), dir("becomes-dir", 0o755), file("becomes-dir/file", "x"), file("becomes-file", "now a file"),
			dir("file-becomes-dir", 0o755), file("file-becomes-dir/file", "x"), dir("etc/conf.d", 0o700), file("closed/deeper/more", "inside"),
		),
		archive(t,
			file("gone", "back again"), entry{Typeflag: tar.TypeReg, Name: "opaque/sub/.wh..wh..opq"},
			file("same", "one"), file("same", "two"), entry{Typeflag: tar.TypeReg, Name: ".wh.same"}, // hides lower layers only
			entry{Typeflag: tar.TypeReg, Name: "etc/.wh..wh.aufs"},
		),
	}
}

// tarExtracted lays layers over each other with tar(1): what each hides is removed first, as it is lower layers' only.
func tarExtracted(t *testing.T, layers [][]byte) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	must(t, os.Mkdir(root, 0o755))
	for _, l := range layers {
		for r := tar.NewReader(bytes.NewReader(l)); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			must(t, err)
			hidden, is := strings.CutPrefix(path.Base(h.Name), ".wh.")
			switch {
			case !is:
			case hidden == ".wh..opq":
				entries, err := os.ReadDir(filepath.Join(root, path.Dir(h.Name)))
				must(t, err)
				for _, e := range entries {
					must(t, os.RemoveAll(filepath.Join(root, path.Dir(h.Name), e.Name())))
				}
			default:
				must(t, os.RemoveAll(filepath.Join(root, path.Dir(h.Name), hidden)))
			}
		}
		cmd := exec.Command("tar", "-x", "-p", "--same-owner", "--numeric-owner", "--xattrs", "--xattrs-include=user.*", "--exclude=.wh.*",
			"--recursive-unlink", "-C", root)
		cmd.Stdin = bytes.NewReader(l)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("tar: %v\n%s", err, out)
		}
	}
	return root
}

// comparable lists a tree without intended differences: set-uid and set-gid bits of files, and times of directories, which tar
// does not restore after a later layer has changed them.
func comparable(t *testing.T, root string) []string {
	t.Helper()
	must(t, filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Chtimes(p, epoch, epoch)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if d.Type().IsRegular() && info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
			return os.Chmod(p, info.Mode().Perm())
		}
		return nil
	}))
	return tree(t, root)
}

// An image unpacked here equals what tar makes of it.
func TestUnpackEqualsTar(t *testing.T) {
	testenv.NeedRoot(t)
	layers := ordinaryLayers(t)
	want := comparable(t, tarExtracted(t, layers))
	for name, pack := range map[string]func(testing.TB, []byte) []byte{"gzip": gzipped, "zstd": zstded,
		"plain": func(_ testing.TB, d []byte) []byte { return d }} {
		t.Run(name, func(t *testing.T) {
			var packed [][]byte
			for _, l := range layers {
				packed = append(packed, pack(t, l))
			}
			s := newStore(t)
			root := used(t, s, added(t, s, "x", packed...))
			if read(t, root, "usr/bin/su") != "set-uid" || modeOf(t, root, "usr/bin/su") != 0o755 || modeOf(t, root, "usr/bin/wall") != 0o755 {
				t.Errorf("set-uid bits: %o %o", modeOf(t, root, "usr/bin/su"), modeOf(t, root, "usr/bin/wall"))
			}
			for _, d := range []string{".", "usr/bin", "etc", "closed/deeper"} {
				if info, err := os.Lstat(filepath.Join(root, d)); err != nil || !info.ModTime().Equal(epoch) {
					t.Errorf("%s: the directory's time is not the archive's: %v, %v", d, info, err)
				}
			}
			if diff := cmp.Diff(want, comparable(t, root)); diff != "" {
				t.Errorf("tar -, ours +:\n%s", diff)
			}
		})
	}
	if len(want) < 60 {
		t.Errorf("only %d entries were compared", len(want))
	}
}

func modeOf(t testing.TB, elem ...string) uint32 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(filepath.Join(elem...), &st))
	return st.Mode & 0o7777
}

// The same with the files of a real system.
func TestUnpackRealFiles(t *testing.T) {
	testenv.NeedRoot(t)
	pack := func(args ...string) []byte {
		cmd := exec.Command("tar", append([]string{"-c", "--numeric-owner", "--sparse", "-C", "/"}, args...)...)
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		if err := cmd.Run(); err != nil {
			t.Fatalf("tar: %v\n%s", err, said.Bytes())
		}
		return out.Bytes()
	}
	second := []string{"--format=posix", "--xattrs", "etc/init.d", "etc/default", "usr/share/zoneinfo/Europe", "usr/share/perl5"}
	if testenv.All() {
		second = append(second, "usr/lib/python3")
	}
	layers := [][]byte{
		pack("--format=gnu", "bin", "sbin", "lib", "usr/bin/env", "usr/share/zoneinfo", "etc/alternatives", "etc/ssl"),
		pack(second...),
		archive(t, entry{Typeflag: tar.TypeReg, Name: "usr/share/.wh.perl5"},
			entry{Typeflag: tar.TypeReg, Name: "usr/share/zoneinfo/Europe/.wh..wh..opq"}),
		pack("--format=gnu", "usr/share/zoneinfo/Europe/Berlin", "bin/sh", "bin/tar"),
	}
	want := comparable(t, tarExtracted(t, layers))
	s := newStore(t)
	got := comparable(t, used(t, s, added(t, s, "x", layers...)))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tar -, ours +:\n%s", diff)
	}
	if len(want) < 1000 {
		t.Errorf("only %d entries were compared", len(want))
	}
}

// An ordinary user has everything, closed directories included, and can remove it.
func TestUnpackAsUser(t *testing.T) {
	if asUser(t) {
		return
	}
	layers := ordinaryLayers(t)
	s := newStore(t)
	img := added(t, s, "x", layers...)
	l, err := s.Use(img)
	must(t, err)
	root := l.Dir()
	for name, want := range map[string]uint32{"etc/mine": 0o644, "etc/none": 0, "home/user": 0o700, "tmp": 0o1777, "closed": 0o500,
		"closed/deeper": 0, "usr/bin/su": 0o755} {
		if name == "closed/deeper" && os.Geteuid() != 0 {
			must(t, os.Chmod(filepath.Join(root, "closed"), 0o700)) // to look into it
		}
		if got := modeOf(t, root, name); got != want && !(name == "closed" && got == 0o700) {
			t.Errorf("%s: %o, want %o", name, got, want)
		}
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(root, name), &st))
		if int(st.Uid) != os.Geteuid() {
			t.Errorf("%s belongs to %d", name, st.Uid)
		}
	}
	must(t, l.Close())
	_, removed, err := s.Remove("x", false)
	if err != nil || !removed {
		t.Errorf("%v, %v", removed, err)
	}
	isEmpty(t, s)
}

// isEmpty checks that a store holds nothing but its locks.
func isEmpty(t testing.TB, s *image.Store) {
	t.Helper()
	for _, d := range []string{"blobs", "images", "names", "roots", "partial", "work"} {
		entries, err := os.ReadDir(filepath.Join(s.Dir(), d))
		must(t, err)
		for _, e := range entries {
			t.Errorf("%s/%s is left", d, e.Name())
		}
	}
}

// isEmptyAfterDay checks that a store that is collected a day later is empty. Until then it keeps the beginnings of layers: the store
// cancels the transfers of other layers when it refuses one, at any byte.
func isEmptyAfterDay(t testing.TB, s *image.Store) {
	t.Helper()
	partial, err := filepath.Glob(filepath.Join(s.Dir(), "partial", "*"))
	must(t, err)
	old := time.Now().Add(-25 * time.Hour)
	for _, p := range partial {
		must(t, os.Chtimes(p, old, old))
	}
	must(t, s.Collect(t.Context()))
	isEmpty(t, s)
}

// Files that others may not read are the sandbox user's where the image says so.
func TestUnpackForTheSandboxUser(t *testing.T) {
	testenv.NeedRoot(t)
	s := newStore(t)
	root := used(t, s, added(t, s, "x", archive(t,
		owned(withMode(file("theirs", "x"), 0o640), 1000, 1000), owned(withMode(file("group", "x"), 0o640), 0, 1000),
		owned(withMode(file("others", "x"), 0o640), 1001, 1001), owned(dir("home", 0o700), 1000, 1000))))
	for name, want := range map[string]uint32{"theirs": 0o646, "group": 0o644, "others": 0o640, "home": 0o707} {
		if got := modeOf(t, root, name); got != want {
			t.Errorf("%s: %o, want %o", name, got, want)
		}
	}
}

func TestUnpackSparse(t *testing.T) {
	if _, err := exec.LookPath("tar"); err != nil {
		t.Skip("needs tar")
	}
	from := t.TempDir()
	f, err := os.Create(filepath.Join(from, "sparse"))
	must(t, err)
	_, err = f.WriteAt([]byte("begin"), 0)
	must(t, err)
	_, err = f.WriteAt([]byte("middle"), 30<<20)
	must(t, err)
	must(t, f.Truncate(64<<20))
	must(t, f.Close())
	for _, format := range []string{"gnu", "posix"} {
		out, err := exec.Command("tar", "-c", "--sparse", "--format="+format, "-C", from, "sparse").Output()
		must(t, err)
		if len(out) > 1<<20 {
			t.Fatalf("%s: not sparse: %d", format, len(out))
		}
		s := newStore(t)
		root := used(t, s, added(t, s, "x", out))
		if read(t, root, "sparse") != read(t, from, "sparse") {
			t.Errorf("%s: another content", format)
		}
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(root, "sparse"), &st))
		if st.Blocks*512 > 1<<20 {
			t.Errorf("%s: it takes %d bytes", format, st.Blocks*512)
		}
	}
}

// What belongs to the kernel or to overlay file systems is dropped.
func TestUnpackDropsAttributes(t *testing.T) {
	s := newStore(t)
	root := used(t, s, added(t, s, "x", archive(t,
		withXattr(withXattr(withXattr(withXattr(withXattr(file("f", "x"), "user.kept", "yes"), "user.overlay.opaque", "y"),
			"trusted.overlay.redirect", "/etc"), "security.capability", "\x01\x00\x00\x02\xff\xff\xff\xff"), "user.overlay.metacopy", ""))))
	var buf [4096]byte
	n, err := unix.Llistxattr(filepath.Join(root, "f"), buf[:])
	must(t, err)
	if got := string(buf[:n]); got != "user.kept\x00" {
		t.Errorf("%q", got)
	}
}

// F9: whatever an archive says, nothing happens outside of its directory.
func TestUnpackF9(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.MkdirAll(filepath.Join(outside, "dir"), 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "precious"), []byte("precious"), 0o644))
	before := tree(t, outside)
	up := strings.Repeat("../", 40)
	for name, c := range map[string]struct {
		layers [][]byte
		refuse string // part of the error; nothing where it is contained
		check  func(t *testing.T, root string)
	}{
		"control":         {layers: [][]byte{archive(t, file("fine", "x"))}, check: has("fine")},
		"climbs":          {layers: [][]byte{archive(t, file("../x", "x"))}, refuse: "climbs"},
		"climbs inside":   {layers: [][]byte{archive(t, file("a/../../x", "x"))}, refuse: "climbs"},
		"climbs by link":  {layers: [][]byte{archive(t, link("l", up+outside), file("l/x", "x"))}, refuse: "not a directory"},
		"absolute":        {layers: [][]byte{archive(t, file(outside+"/x", "x"))}, check: has(outside + "/x")},
		"absolute link":   {layers: [][]byte{archive(t, link("l", outside), file("l/precious", "x"))}, refuse: "not a directory"},
		"link in root":    {layers: [][]byte{archive(t, dir("real", 0o755), link("l", "/real"), file("l/x", "x"))}, check: has("real/x")},
		"link up in root": {layers: [][]byte{archive(t, dir("real", 0o755), link("l", up+"real"), file("l/x", "x"))}, check: has("real/x")},
		"link to proc":    {layers: [][]byte{archive(t, link("l", "/proc/self/root"), file("l/x", "x"))}, refuse: "not a directory"},
		"link loop":       {layers: [][]byte{archive(t, link("l", "m"), link("m", "l"), file("l/x", "x"))}, refuse: "not a directory"},
		"over a link": {layers: [][]byte{archive(t, link("l", outside+"/precious")), archive(t, file("l", "mine"))},
			check: isFile("l", "mine")},
		"link then file": {layers: [][]byte{archive(t, link("l", outside+"/precious"), file("l", "mine"))}, check: isFile("l", "mine")},
		"dir over link": {layers: [][]byte{archive(t, link("l", outside)), archive(t, dir("l", 0o755), file("l/precious", "mine"))},
			check: isFile("l/precious", "mine")},
		"dir, link, below": {layers: [][]byte{archive(t, dir("d", 0o755), file("d/x", "x")),
			archive(t, link("d", outside), file("d/precious", "mine"))}, refuse: "not a directory"},
		"cached parent": {layers: [][]byte{archive(t, file("d/a", "x"), entry{Typeflag: tar.TypeSymlink, Name: "d", Linkname: outside},
			file("d/b", "x"))}, refuse: "not a directory"},
		"hard link out": {layers: [][]byte{archive(t, hard("h", up+outside+"/precious"))}, refuse: "climbs"},
		"hard link abs": {layers: [][]byte{archive(t, hard("h", outside+"/precious"))}, refuse: "not in the image"},
		"hard by link":  {layers: [][]byte{archive(t, link("l", outside), hard("h", "l/precious"))}, refuse: "not in the image"},
		"hard to link": {layers: [][]byte{archive(t, link("l", outside+"/precious"), hard("h", "l"), file("h", "mine"))},
			check: isFile("h", "mine")},
		"hard to dir":      {layers: [][]byte{archive(t, dir("d", 0o755), hard("h", "d"))}, refuse: "not a file"},
		"hard to itself":   {layers: [][]byte{archive(t, hard("h", "h"))}, refuse: "not in the image"},
		"hard to itself 2": {layers: [][]byte{archive(t, file("h", "x"), hard("h", "./h"))}, check: isFile("h", "x")},
		"hard to root":     {layers: [][]byte{archive(t, hard("h", "/"))}, refuse: "root"},
		"root is a file":   {layers: [][]byte{archive(t, link("./", "/etc"))}, refuse: "root"},
		"whiteout of dots": {layers: [][]byte{archive(t, file("d/x", "x")), archive(t, file("d/.wh...", "x"))}, refuse: "hides nothing"},
		"whiteout of dot":  {layers: [][]byte{archive(t, file("d/x", "x")), archive(t, file("d/.wh..", "x"))}, refuse: "hides nothing"},
		"whiteout by link": {layers: [][]byte{archive(t, link("l", outside)), archive(t, file("l/.wh.precious", "")),
			archive(t, file("l/.wh..wh..opq", ""))}, check: has("l")},
		"whiteout of link": {layers: [][]byte{archive(t, dir("real", 0o755), file("real/x", "x")),
			archive(t, link("l", "real"), file(".wh.l", ""))}, check: has("real/x")},
		"below a file": {layers: [][]byte{archive(t, file("f", "x"), file("f/x", "x"))}, refuse: "not a directory"},
		// the checksum is wrong
		"zero byte":   {layers: [][]byte{bytes.Replace(archive(t, file("a/bcd", "x")), []byte("a/bcd"), []byte("a/../"), 1)}, refuse: "archive"},
		"long part":   {layers: [][]byte{archive(t, file(strings.Repeat("n", 256), "x"))}, refuse: "256 bytes"},
		"long path":   {layers: [][]byte{archive(t, file(strings.Repeat("d/", 2048)+"x", "x"))}, refuse: "bytes"},
		"deep":        {layers: [][]byte{archive(t, file(strings.Repeat("d/", 300)+"x", "x"))}, refuse: "deep"},
		"long target": {layers: [][]byte{archive(t, link("l", strings.Repeat("t", 5000)))}, refuse: "target"},
		"odd owner":   {layers: [][]byte{archive(t, owned(file("f", "x"), 1<<32-1, 0))}, refuse: "belongs"},
		"devices": {layers: [][]byte{archive(t, file("null", "x"),
			entry{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3, Mode: 0o666},
			entry{Typeflag: tar.TypeBlock, Name: "sda", Devmajor: 8}, entry{Typeflag: tar.TypeFifo, Name: "fifo"}, file("after", "x"))},
			check: hasNot("null", "sda", "fifo")},
		"unknown type": {layers: [][]byte{archive(t, entry{Typeflag: 'Z', Name: "z"})}, refuse: "type"},
		"duplicates": {layers: [][]byte{archive(t, file("f", "one"), dir("f", 0o755), file("f/x", "x"), file("f", "two"), link("f", "x"),
			file("f", "three"))}, check: isFile("f", "three")},
		"F3 proc":        {layers: [][]byte{archive(t, link("proc", "/tmp"))}, refuse: "/proc"},
		"F3 dev":         {layers: [][]byte{archive(t, link("dev", outside))}, refuse: "/dev"},
		"F3 dev/pts":     {layers: [][]byte{archive(t, dir("dev", 0o755), link("dev/pts", outside))}, refuse: "/dev/pts"},
		"F3 sys file":    {layers: [][]byte{archive(t, file("sys", "x"))}, refuse: "/sys"},
		"F3 control":     {layers: [][]byte{archive(t, dir("proc", 0o555), dir("dev/pts", 0o755), dir("sys", 0o555))}, check: has("dev/pts")},
		"not an archive": {layers: [][]byte{[]byte(strings.Repeat("not an archive ", 100))}, refuse: "archive"},
		"cut off":        {layers: [][]byte{archive(t, file("f", strings.Repeat("x", 5000)))[:2000]}, refuse: "archive"},
		"cut off gzip":   {layers: [][]byte{gzipped(t, archive(t, file("f", "x")))[:60]}, refuse: "archive"},
		"xz":             {layers: [][]byte{{0xfd, '7', 'z', 'X', 'Z', 0, 1, 2}}, refuse: "xz"},
		"empty":          {layers: [][]byte{archive(t)}, check: hasNot("x")},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			img, err := s.Add(t.Context(), sourceOf("x", c.layers...))
			if c.refuse != "" {
				if err == nil || !strings.Contains(err.Error(), c.refuse) || !errors.Is(err, sandbox.ErrRefused) || !errors.Is(err, image.ErrInvalid) {
					t.Errorf("%v", err)
				}
				if all, err := s.List(); err != nil || len(all) > 0 {
					t.Errorf("%v, %v", all, err)
				}
				isEmptyAfterDay(t, s)
			} else {
				must(t, err)
				c.check(t, used(t, s, img))
			}
			if diff := cmp.Diff(before, tree(t, outside)); diff != "" {
				t.Errorf("outside:\n%s", diff)
			}
		})
	}
}

func has(name string) func(*testing.T, string) {
	return func(t *testing.T, root string) {
		if !exists(t, root, name) {
			t.Errorf("%s is not there: %q", name, tree(t, root))
		}
	}
}

func hasNot(names ...string) func(*testing.T, string) {
	return func(t *testing.T, root string) {
		for _, name := range names {
			if exists(t, root, name) {
				t.Errorf("%s is there", name)
			}
		}
	}
}

func isFile(name, content string) func(*testing.T, string) {
	return func(t *testing.T, root string) {
		if info, err := os.Lstat(filepath.Join(root, name)); err != nil || !info.Mode().IsRegular() || read(t, root, name) != content {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
}

// F9: bombs end at the limits.
func TestUnpackLimits(t *testing.T) {
	zeros := func(n int) []byte { return make([]byte, n) }
	many := func(n int) []byte {
		var entries []entry
		for i := range n {
			entries = append(entries, file("f"+strings.Repeat("x", i), ""))
		}
		return archive(t, entries...)
	}
	// An archive that is over, and then zeros without end.
	trailing := gzipped(t, append(archive(t, file("f", "x")), zeros(120<<20)...))
	var sparse bytes.Buffer // a file of 8 EiB in a few bytes
	w := tar.NewWriter(&sparse)
	must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: 1 << 50}))
	layers := make([][]byte, 130)
	for i := range layers {
		layers[i] = archive(t)
	}
	for name, c := range map[string]struct {
		limits image.Limits
		layers [][]byte
		refuse string
	}{
		"control": {image.Limits{Bytes: 4 << 20, Entries: 100}, [][]byte{gzipped(t, archive(t, file("f", string(zeros(3<<20)))))}, ""},
		"bytes":   {image.Limits{Bytes: 1 << 20}, [][]byte{gzipped(t, archive(t, file("f", string(zeros(3<<20)))))}, "bytes"},
		"bytes in all": {image.Limits{Bytes: 1 << 20}, [][]byte{archive(t, file("f", string(zeros(600<<10)))),
			archive(t, file("f", string(zeros(600<<10)))), archive(t)}, "bytes"},
		"huge header":   {image.Limits{}, [][]byte{sparse.Bytes()}, "bytes"},
		"entries":       {image.Limits{Entries: 99}, [][]byte{many(100)}, "entries"},
		"made dirs":     {image.Limits{Entries: 99}, [][]byte{archive(t, file(strings.Repeat("d/", 100)+"f", ""))}, "entries"},
		"layers":        {image.Limits{}, layers, "130 layers"},
		"after the end": {image.Limits{Bytes: 1 << 20}, [][]byte{trailing}, "unpacks to more"},
		"blob":          {image.Limits{Blob: 1000}, [][]byte{archive(t, file("f", "x"))}, "1000 are allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			s.Limits = c.limits
			_, err := s.Add(t.Context(), sourceOf("x", c.layers...))
			if c.refuse == "" {
				must(t, err)
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.refuse) || !errors.Is(err, sandbox.ErrRefused) {
				t.Errorf("%v", err)
			}
			isEmptyAfterDay(t, s)
		})
	}
}
