package scratch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// forget makes the next Disk read the directory again, as a new process would.
func forget() {
	cacheDirs.mu.Lock()
	defer cacheDirs.mu.Unlock()
	for _, d := range cacheDirs.open {
		_ = d.at.Close()
	}
	cacheDirs.open = nil
}

func TestTemplateDamage(t *testing.T) {
	dir := needDisk(t)
	o := Options{Bytes: 10 * mib, Inodes: 100, CacheDir: dir}
	path := filepath.Join(dir, "scratch-10485760-100-v2.ext4")
	try := func() []byte {
		t.Helper()
		forget()
		s, err := Disk(o)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := fill(int(s.File().Fd()), "x", 20*mib); !errors.Is(err, unix.ENOSPC) || n < 10*mib*97/100 {
			t.Errorf("%d, %v", n, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	good := try()
	if again := try(); string(again) != string(good) {
		t.Error("a good template was remade")
	}
	if len(good) > 100_000 {
		t.Errorf("the template has %d bytes", len(good))
	}
	flipped := append([]byte(nil), good...)
	flipped[len(flipped)/2] ^= 1
	for name, damage := range map[string][]byte{
		"empty": {}, "half": good[:len(good)/2], "bit": flipped, "zero": make([]byte, len(good)), "longer": append(good[:len(good):len(good)], 0),
	} {
		if err := os.WriteFile(path, damage, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := decode(try()); err != nil {
			t.Errorf("%s: not remade: %v", name, err)
		}
	}
	// A template that another user can write, and entries that are no file.
	for name, plant := range map[string]func() error{
		"writable": func() error { return os.Chmod(path, 0o666) },
		"symlink":  func() error { return errors.Join(os.Remove(path), os.Symlink("/etc/passwd", path)) },
		"fifo":     func() error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) },
	} {
		if err := plant(); err != nil {
			t.Fatal(err)
		}
		try()
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	noLoops(t, dir)
}

func TestTemplatesAreTrimmed(t *testing.T) {
	dir := needDisk(t)
	for i := range maxTemplates {
		if err := os.WriteFile(filepath.Join(dir, "scratch-"+strings.Repeat("1", i+1)+"-1-v2.ext4"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Disk(Options{Bytes: mib, Inodes: 10, CacheDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if names, _ := filepath.Glob(dir + "/*"); len(names) != 1 {
		t.Errorf("left: %q", names)
	}
}

func TestCacheDirRefused(t *testing.T) {
	base := needDisk(t)
	use := func(path string) error {
		s, err := Disk(Options{Bytes: mib, Inodes: 10, CacheDir: path})
		if err == nil {
			_ = s.Close()
		}
		return err
	}
	open, foreign, link, file := base+"/open", base+"/foreign", base+"/link", base+"/file"
	for _, err := range []error{
		os.Mkdir(open, 0o700), os.Chmod(open, 0o755), os.Mkdir(foreign, 0o700), os.Chown(foreign, 1000, 1000),
		os.Symlink(base, link), os.WriteFile(file, nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{open, foreign, link, file, "relative"} {
		if err := use(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
		if err := DiskAvailable(path); path != "relative" && !errors.Is(err, ErrUnavailable) {
			t.Errorf("available with %s: %v", path, err)
		}
	}
	if err := use(base + "/missing/deep"); err != nil {
		t.Errorf("positive control: %v", err)
	}
	if info, err := os.Stat(base + "/missing/deep"); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	forget()
}

func TestCacheDirRemoved(t *testing.T) {
	base := needDisk(t)
	o := Options{Bytes: mib, Inodes: 10, CacheDir: base + "/cache"}
	for range 2 { // an operator may clear /var/cache under a running server
		s, err := Disk(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(o.CacheDir); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	good := (&template{size: 8192, extents: []extent{{0, []byte("abc")}, {4096, []byte("defg")}}}).encode()
	f.Add(good)
	f.Add(good[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		t1, err := decode(b)
		if err == nil && string(t1.encode()) != string(b) {
			t.Error("accepted something that encode would not have written")
		}
	})
}
