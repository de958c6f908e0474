package toolchain

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
)

func TestCompareVersions(t *testing.T) {
	names := []string{"v9.11.2", "v18.20.1", "v18.3.0", "v22.0.0-rc1", "3.9", "3.10", "3.010", "jdk", ""}
	slices.SortFunc(names, compareVersions)
	if got := fmt.Sprint(names); got != "[ 3.9 3.10 3.010 jdk v9.11.2 v18.3.0 v18.20.1 v22.0.0-rc1]" {
		t.Error(got)
	}
}

// linkageOf says of real files what the machine's own tools say of them.
func TestLinkage(t *testing.T) {
	l, err := linkageOf("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	_ = l // static or not, as the tests were built
	r, err := resolve("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if l, err = linkageOf(r.real); err != nil || !strings.Contains(l.interpreter, "ld-") ||
		!slices.ContainsFunc(l.needed, func(s string) bool { return strings.HasPrefix(s, "libc.") }) {
		t.Errorf("%+v %v", l, err)
	}
	if _, err := linkageOf(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := linkageOf("/etc/passwd"); !errors.Is(err, errNotELF) {
		t.Error(err)
	}
}

func TestStoreIsBounded(t *testing.T) {
	s := store{filepath.Join(t.TempDir(), "cache", "toolchains.json")}
	for i := range maxRecords + 10 {
		s.write(&record{Name: "x", Key: fmt.Sprint(i), Tool: &Toolchain{Name: "x", Path: "/x", ID: "1"}, Stamps: []string{"/", stampOf("/")}})
	}
	if n := len(s.lines()); n != maxRecords {
		t.Errorf("%d records", n)
	}
	if s.read("x", "0") != nil || s.read("x", fmt.Sprint(maxRecords+9)) == nil {
		t.Error("the oldest was kept, or the newest was not")
	}
}

// Root has one cache directory for disks and toolchains.
func TestDefaultStore(t *testing.T) {
	if systemCache != scratch.DefaultCacheDir {
		t.Errorf("root's cache directory is %s here and %s there", systemCache, scratch.DefaultCacheDir)
	}
	if p := DefaultStore(); os.Geteuid() == 0 && p != "/var/cache/sandbox-run/toolchains.json" {
		t.Errorf("root's store is %s", p)
	}
}
