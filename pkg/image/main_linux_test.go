package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/image"
	_ "github.com/sandbox-run/sandbox-run/pkg/image/codec"
)

// TestMain is also the other process that some tests need.
func TestMain(m *testing.M) {
	if what := os.Getenv("IMAGE_TEST_CHILD"); what != "" {
		os.Exit(child(what))
	}
	goleak.VerifyTestMain(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newStore(t testing.TB) *image.Store {
	t.Helper()
	s, err := image.Open(filepath.Join(t.TempDir(), "images"))
	must(t, err)
	return s
}

// entry is a line of an archive. What is zero has a sensible default.
type entry = tar.Header

func dir(name string, mode int64) entry {
	return entry{Typeflag: tar.TypeDir, Name: name, Mode: mode}
}

func file(name, content string) entry {
	return entry{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, PAXRecords: map[string]string{"TEST.content": content}}
}

func link(name, to string) entry {
	return entry{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}
}

func hard(name, to string) entry {
	return entry{Typeflag: tar.TypeLink, Name: name, Linkname: to, Mode: 0o644}
}

var epoch = time.Unix(1700000000, 123456789)

// archive makes a layer. The content of a file travels in a PAX record that is taken out here.
func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		content := e.PAXRecords["TEST.content"]
		if e.Typeflag == tar.TypeReg {
			records := map[string]string{}
			for k, v := range e.PAXRecords {
				if k != "TEST.content" {
					records[k] = v
				}
			}
			e.PAXRecords = records
			e.Size = int64(len(content))
		}
		if e.ModTime.IsZero() {
			e.ModTime = epoch
		}
		e.Format = tar.FormatPAX
		must(t, w.WriteHeader(&e))
		_, err := io.WriteString(w, content)
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	must(t, err)
	must(t, w.Close())
	return b.Bytes()
}

func zstded(t testing.TB, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	must(t, err)
	defer w.Close()
	return w.EncodeAll(data, nil)
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func layerOf(data []byte) image.Layer {
	return image.Layer{
		Digest: digest(data), Size: int64(len(data)),
		Open: func(_ context.Context, offset int64) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(data[offset:])), nil
		},
	}
}

func sourceOf(name string, layers ...[]byte) image.Source {
	src := image.Source{}
	if name != "" {
		src.Names = []string{name}
	}
	for _, l := range layers {
		src.Layers = append(src.Layers, layerOf(l))
	}
	return src
}

func added(t testing.TB, s *image.Store, name string, layers ...[]byte) *image.Image {
	t.Helper()
	img, err := s.Add(t.Context(), sourceOf(name, layers...))
	must(t, err)
	return img
}

func used(t testing.TB, s *image.Store, img *image.Image) string {
	t.Helper()
	l, err := s.Use(img)
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	return l.Dir()
}

// tree describes all that is in a directory, one line for each thing: kind, mode, owner, size, time, content, links, attributes.
// Things that are one (hard links) say so.
func tree(t testing.TB, root string) []string {
	t.Helper()
	var lines []string
	first := map[uint64]string{}
	must(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%s %o %d:%d %d.%09d", name, st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" n=%d %d %s", st.Nlink, len(data), digest(data)[7:19])
		case unix.S_IFLNK:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + to
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
			if one := first[st.Ino]; one != "" {
				line += " is " + one
			} else {
				first[st.Ino] = name
			}
		}
		for _, x := range xattrs(t, path) {
			line += " " + x
		}
		lines = append(lines, line)
		return nil
	}))
	return lines
}

func xattrs(t testing.TB, path string) []string {
	t.Helper()
	var buf [65536]byte
	n, err := unix.Llistxattr(path, buf[:])
	must(t, err)
	var all []string
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if name == "" || !strings.HasPrefix(name, "user.") {
			continue
		}
		var value [65536]byte
		m, err := unix.Lgetxattr(path, name, value[:])
		must(t, err)
		all = append(all, name+"="+string(value[:m]))
	}
	sort.Strings(all)
	return all
}

func read(t testing.TB, elem ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(elem...))
	must(t, err)
	return string(data)
}

func exists(t testing.TB, elem ...string) bool {
	t.Helper()
	_, err := os.Lstat(filepath.Join(elem...))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil
}

// asUser runs a test again as an ordinary user, in a directory of that user's; it reports whether it did so.
func asUser(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return false
	}
	home, err := os.MkdirTemp("", "image-plain-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(home) })
	must(t, os.Chown(home, 65534, 65534))
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), "TMPDIR="+home, "HOME="+home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as an ordinary user: %v\n%s", err, out)
	}
	if bytes.Contains(out, []byte("--- SKIP: "+t.Name())) {
		t.Skipf("as an ordinary user:\n%s", out)
	}
	return true
}
