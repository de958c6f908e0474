package image

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// FuzzUnpack unpacks two arbitrary layers over each other. Unpacking ends, changes nothing outside, and makes only files,
// directories and links.
func FuzzUnpack(f *testing.F) {
	one := func(headers ...tar.Header) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			h.Size = 0
			if err := w.WriteHeader(&h); err != nil {
				f.Fatal(err)
			}
		}
		_ = w.Close()
		return b.Bytes()
	}
	f.Add(one(tar.Header{Name: "a/b", Typeflag: tar.TypeReg, Mode: 0o644}), one(tar.Header{Name: "a/.wh.b", Typeflag: tar.TypeReg}))
	f.Add(one(tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../../outside"}, tar.Header{Name: "l/x", Typeflag: tar.TypeReg}),
		one(tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "l"}))
	f.Add(one(tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0}),
		one(tar.Header{Name: "d/.wh..wh..opq", Typeflag: tar.TypeReg}, tar.Header{Name: "d", Typeflag: tar.TypeSymlink, Linkname: "/outside"}))
	f.Add(one(tar.Header{Name: "x", Typeflag: tar.TypeReg, PAXRecords: map[string]string{"SCHILY.xattr.user.x": "y"}}),
		one(tar.Header{Name: "x", Typeflag: tar.TypeChar}))
	f.Add(one(tar.Header{Name: strings.Repeat("d/", 120) + "x", Typeflag: tar.TypeReg}), []byte("junk"))
	f.Fuzz(func(t *testing.T, lower, upper []byte) { layOver(t, lower, upper) })
}

// FuzzEntries unpacks well-formed archives whose entries conflict: the input selects names and targets.
func FuzzEntries(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, []byte{2, 1, 7, 0, 12, 0})
	f.Add([]byte{2, 0, 5, 0, 8, 0, 1, 4, 0}, []byte{0, 16, 0, 5, 0, 0, 3, 3, 6})
	names := []string{
		"a", "b", "a/b", "a/b/c", "l", "l/x", "l/l/x", "./a/", "/a", "a/.wh.b", ".wh.a", "a/.wh..wh..opq", ".wh..wh..opq", "l/.wh.x",
		"l/.wh..wh..opq",
		"b/a", "../a", "a/../../b", "", "d/e/f/g", "d", ".wh.l", "d/e", "d/e/.wh..wh..opq", "work", "outside/x",
	}
	targets := []string{"a", "b", "a/b", "l", "..", "../../..", "../../../outside", "/", "/outside", ".", "l/x", "a/../../../outside/x", "d/e",
		"/proc/self/root", "x"}
	kinds := []byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeChar, tar.TypeFifo, tar.TypeXGlobalHeader, 'Z'}
	build := func(program []byte) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for len(program) >= 3 {
			h := tar.Header{
				Typeflag: kinds[int(program[0])%len(kinds)], Name: names[int(program[1])%len(names)], Linkname: targets[int(program[2])%len(targets)],
				Mode: int64(program[0]) << 4, Uid: int(program[1]), Gid: int(program[2]),
			}
			if h.Typeflag == tar.TypeXGlobalHeader {
				h = tar.Header{Typeflag: h.Typeflag, PAXRecords: map[string]string{"comment": "x"}}
			}
			program = program[3:]
			_ = w.WriteHeader(&h) // one that can not be written is left out
		}
		_ = w.Close()
		return b.Bytes()
	}
	f.Fuzz(func(t *testing.T, lower, upper []byte) { layOver(t, build(lower), build(upper)) })
}

func layOver(t *testing.T, layers ...[]byte) {
	top, err := os.MkdirTemp("", "fuzz-unpack-") // quicker than the test's own
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	outside, work := filepath.Join(top, "outside"), filepath.Join(top, "work")
	for _, d := range []string{outside, work} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "x"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s := &Store{Limits: Limits{Bytes: 1 << 20, Entries: 2000}}
	u, err := s.newUnpacker(work)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		if u.layer(ctx, bytes.NewReader(l)) != nil {
			break
		}
	}
	_ = u.seal(ctx) // what was unpacked before an error can be sealed as well
	u.close()
	if ctx.Err() != nil {
		t.Fatal("it took too long")
	}
	openUp(work)
	checkInside(t, top, outside, filepath.Join(work, treeName, rootName))
}

// openUp makes directories readable again for an ordinary user.
func openUp(root string) {
	_ = filepath.WalkDir(root, func(p string, d os.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(p, 0o700)
		}
		return nil
	})
}

func checkInside(t *testing.T, top, outside, root string) {
	entries, err := os.ReadDir(top)
	if err != nil || len(entries) != 2 {
		t.Fatalf("%v, %v", entries, err)
	}
	entries, err = os.ReadDir(outside)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(outside, "x"), &st); err != nil || st.Nlink != 1 || st.Mode != unix.S_IFREG|0o600 || st.Size != 8 {
		t.Fatalf("%+v, %v", st, err)
	}
	err = filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if kind := d.Type(); !kind.IsRegular() && kind != os.ModeDir && kind != os.ModeSymlink {
			t.Fatalf("%s is %v", p, kind)
		}
		if info, err := d.Info(); err != nil || info.Mode()&(os.ModeSetuid) != 0 && !d.IsDir() {
			t.Fatalf("%s: %v, %v", p, info, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// FuzzImport reads anything as an archive of images.
func FuzzImport(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range map[string]string{
		"manifest.json": `[{"Config":"c.json","RepoTags":["x"],"Layers":["l.tar"]}]`, "c.json": `{"os":"linux"}`, "l.tar": "",
		"oci-layout": `{"imageLayoutVersion":"1.0.0"}`, "index.json": `{"schemaVersion":2,"manifests":[]}`,
	} {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			f.Fatal(err)
		}
		_, _ = w.Write([]byte(text))
	}
	_ = w.Close()
	f.Add(b.Bytes())
	f.Add([]byte{0x1f, 0x8b, 8, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Open(filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		s.Limits = Limits{Bytes: 1 << 20, Entries: 1000, Blob: 1 << 20}
		images, err := s.Import(t.Context(), bytes.NewReader(data), ImportOptions{Names: []string{"x"}})
		if all, listed := s.List(); listed != nil || err == nil && len(all) == 0 || len(all) < len(images) {
			t.Fatalf("%d images, %v; %d listed, %v", len(images), err, len(all), listed)
		}
		openUp(s.Dir())
	})
}
