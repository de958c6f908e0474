package build

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

var (
	packaged = time.Date(2024, 3, 1, 12, 0, 0, 0, time.UTC)
	newest   = packaged.Add(48 * time.Hour)
	began    = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

const status = `Package: a
Status: install ok installed
Version: 1:2.3-4
Description: x
 Version: not this one

Package: gone
Status: deinstall ok config-files
Version: 1
`

// root is a root as mmdebstrap leaves one, now. Times of what it made, owners' names and attributes differ from build to build.
func root(now time.Time, owner string) []*entry {
	file := func(name, text string, mode int64, t time.Time) *entry {
		return &entry{header: &tar.Header{Typeflag: tar.TypeReg, Name: "./" + name, Mode: mode, Size: int64(len(text)), ModTime: t, Uname: owner,
			PAXRecords: map[string]string{"SCHILY.xattr.user.who": owner}, Format: tar.FormatPAX}, text: []byte(text)}
	}
	dir := func(name string, t time.Time) *entry {
		return &entry{header: &tar.Header{Typeflag: tar.TypeDir, Name: "./" + name + "/", Mode: 0o755, ModTime: t}}
	}
	return []*entry{
		dir("", now), dir("etc", now), dir("dev", now), dir("tmp", now), dir("var", now), dir("var/lib", now), dir("var/lib/dpkg", now),
		dir("home", packaged), dir("usr", packaged), dir("var/log", now),
		file("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n", 0o644, now),
		file("etc/group", "root:x:0:\n", 0o644, now),
		file("etc/machine-id", owner, 0o444, now),
		file("etc/hostname", owner, 0o644, now),
		file("etc/resolv.conf", owner, 0o644, now),
		file("var/lib/dpkg/status", status, 0o644, now),
		file("var/lib/dpkg/status-old", owner, 0o644, now),
		file("var/log/dpkg.log", owner, 0o644, now),
		file("tmp/x", owner, 0o644, now),
		file("usr/new", "new", 0o644, newest),
		file("usr/su", "su", 0o4755, packaged),
		file("usr/z", "linked", 0o755, packaged),
		{header: &tar.Header{Typeflag: tar.TypeLink, Name: "./usr/a", Linkname: "./usr/z"}},
		{header: &tar.Header{Typeflag: tar.TypeLink, Name: "./usr/m", Linkname: "./usr/z"}},
		{header: &tar.Header{Typeflag: tar.TypeSymlink, Name: "./bin", Linkname: "usr/bin", Mode: 0o777, ModTime: now}},
		{header: &tar.Header{Typeflag: tar.TypeChar, Name: "./dev/null", Devmajor: 1, Devminor: 3}},
		{header: &tar.Header{Typeflag: tar.TypeFifo, Name: "./etc/fifo"}},
		file(keystore, string(jks(now, "b", "a")), 0o644, now),
	}
}

func archive(t *testing.T, entries []*entry) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "root.tar"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	w := tar.NewWriter(f)
	for _, e := range entries {
		if err := w.WriteHeader(e.header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestLayerIsTheSameWheneverItIsMade(t *testing.T) {
	first := root(began.Add(time.Minute), "one")
	second := root(began.Add(30*24*time.Hour), "two")
	rand.Shuffle(len(second)-1, func(i, j int) { second[i+1], second[j+1] = second[j+1], second[i+1] })
	// A link has to come after its file.
	slices.SortStableFunc(second, func(a, b *entry) int {
		return strings.Compare(strings.Trim(string(a.header.Typeflag), "0235"), strings.Trim(string(b.header.Typeflag), "0235"))
	})
	var a, b, c bytes.Buffer
	one, err := writeLayer(t.Context(), archive(t, first), &a, began, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	two, err := writeLayer(t.Context(), archive(t, second), &b, began, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if one.digest != two.digest || one.diffID != two.diffID || !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("two builds of the same packages differ")
	}
	if !one.epoch.Equal(newest) {
		t.Errorf("the image is of %v, its newest package of %v", one.epoch, newest)
	}
	if one.size != int64(a.Len()) || one.packages["a"] != "1:2.3-4" || len(one.packages) != 1 {
		t.Errorf("%+v of %d bytes", one, a.Len())
	}
	// The control: another version of a file is another layer.
	first[19].text[0]++
	three, err := writeLayer(t.Context(), archive(t, first), &c, began, time.Time{})
	if err != nil || three.digest == one.digest {
		t.Errorf("%v; another file, the same layer", err)
	}
}

func TestLayerContent(t *testing.T) {
	var packed bytes.Buffer
	early := packaged.Add(time.Hour)
	if _, err := writeLayer(t.Context(), archive(t, root(began.Add(time.Minute), "one")), &packed, began, early); err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(&packed)
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(z)
	var names []string
	found := map[string]*tar.Header{}
	text := map[string]string{}
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		found[h.Name], text[h.Name] = h, string(content)
		if h.ModTime.After(early) {
			t.Errorf("%s is of %v, later than was asked for", h.Name, h.ModTime)
		}
		if h.Uname != "" || len(h.PAXRecords) > 0 {
			t.Errorf("%s: %q, %v", h.Name, h.Uname, h.PAXRecords)
		}
	}
	want := []string{
		"bin", "dev/", "etc/", "etc/group", "etc/passwd", keystore, "home/", "home/sandbox/", "tmp/", "usr/", "usr/a", "usr/m", "usr/new",
		"usr/su", "usr/z",
		"var/", "var/lib/", "var/lib/dpkg/", "var/lib/dpkg/status", "var/log/", "workspace/",
	}
	if !slices.Equal(names, want) {
		t.Errorf("got  %q\nwant %q", names, want)
	}
	if text["etc/passwd"] != "root:x:0:0:root:/root:/bin/bash\nsandbox:x:1000:1000::/home/sandbox:/bin/sh\n" ||
		text["etc/group"] != "root:x:0:\nsandbox:x:1000:\n" {
		t.Errorf("%q %q", text["etc/passwd"], text["etc/group"])
	}
	if found["usr/su"].Mode != 0o755 || text["usr/su"] != "su" {
		t.Errorf("su has the mode %o", found["usr/su"].Mode)
	}
	if a, z := found["usr/a"], found["usr/z"]; a.Typeflag != tar.TypeReg || text["usr/a"] != "linked" || a.Mode != 0o755 ||
		z.Typeflag != tar.TypeLink || z.Linkname != "usr/a" {
		t.Errorf("%+v %+v", a, z)
	}
	if w := found["workspace/"]; w.Uid != userID || w.Gid != userID {
		t.Errorf("%+v", w)
	}
}

func TestLayerOfSomethingElse(t *testing.T) {
	broken := root(began, "x")
	broken[15].text = []byte(strings.Replace(status, "install ok installed", "install ok half-configured", 1))
	broken[15].header.Size = int64(len(broken[15].text))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	odd := &entry{header: &tar.Header{Typeflag: tar.TypeLink, Name: "usr/x", Linkname: "tmp/x"}}
	for _, c := range []struct {
		ctx     context.Context
		entries []*entry
		want    string
	}{
		{t.Context(), broken, `package a is in the state "install ok half-configured"`},
		{t.Context(), nil, "no packages"},
		{t.Context(), append(root(began, "x"), odd), "usr/x is another name of tmp/x"},
		{cancelled, root(began, "x"), "context canceled"},
	} {
		if _, err := writeLayer(c.ctx, archive(t, c.entries), io.Discard, began, time.Time{}); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	f := archive(t, root(began, "x"))
	if err := f.Truncate(1000); err != nil {
		t.Fatal(err)
	}
	if _, err := writeLayer(t.Context(), f, io.Discard, began, time.Time{}); err == nil {
		t.Error("half an archive was taken for a whole one")
	}
}

func FuzzInstalled(f *testing.F) {
	f.Add([]byte(status))
	f.Fuzz(func(t *testing.T, text []byte) {
		packages, err := parseInstalled(text)
		if err != nil && packages != nil {
			t.Error("both")
		}
		if _, ok := packages[""]; ok {
			t.Error("a package without a name")
		}
	})
}

// jks makes a Java key store of certificates that are none.
func jks(now time.Time, aliases ...string) []byte {
	var b []byte
	text := func(s string) { b = append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...) }
	b = binary.BigEndian.AppendUint32(b, storeMagic)
	b = binary.BigEndian.AppendUint32(b, storeVersion)
	b = binary.BigEndian.AppendUint32(b, uint32(len(aliases)))
	for _, a := range aliases {
		b = binary.BigEndian.AppendUint32(b, storeTrusted)
		text(a)
		b = binary.BigEndian.AppendUint64(b, uint64(now.UnixMilli()))
		text("X.509")
		b = binary.BigEndian.AppendUint32(b, 3)
		b = append(b, "..."...)
	}
	return append(b, storeSum(b)...)
}

func TestKeystore(t *testing.T) {
	one, err := sortKeystore(jks(began, "a", "b"), packaged)
	if err != nil {
		t.Fatal(err)
	}
	two, err := sortKeystore(jks(newest, "b", "a"), packaged)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one, two) || !bytes.Equal(one, jks(packaged, "a", "b")) {
		t.Error("the order or the time of two stores shows")
	}
	bad := jks(began, "a")
	bad[20]++
	for _, text := range [][]byte{nil, bad, []byte("PK"), make([]byte, 100)} {
		if _, err := sortKeystore(text, packaged); err == nil {
			t.Errorf("%q is a key store", text)
		}
	}
}

// A store that was settled is one that Java reads.
func TestKeystoreOfJava(t *testing.T) {
	testenv.NeedSystem(t)
	if _, err := exec.LookPath("keytool"); err != nil {
		t.Skip("needs keytool, of a Java runtime")
	}
	file := filepath.Join(t.TempDir(), "store")
	for _, alias := range []string{"one", "two"} {
		// A key pair, then only its certificate: keytool makes nothing else.
		keys, cert := filepath.Join(t.TempDir(), "keys"), filepath.Join(t.TempDir(), "cert")
		for _, args := range [][]string{
			{"-genkeypair", "-alias", "x", "-dname", "CN=" + alias, "-keyalg", "EC", "-keystore", keys, "-storepass", storePassword},
			{"-exportcert", "-alias", "x", "-keystore", keys, "-storepass", storePassword, "-file", cert},
			{"-importcert", "-noprompt", "-alias", alias, "-file", cert, "-keystore", file, "-storetype", "JKS", "-storepass", storePassword},
		} {
			if out, err := exec.Command("keytool", args...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	settled, err := sortKeystore(text, packaged)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, settled, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("keytool", "-J-Duser.timezone=UTC", "-J-Duser.language=en", "-list", "-keystore", file, "-storepass",
		storePassword).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "one, Mar 1, 2024") || !strings.Contains(string(out), "two, Mar 1, 2024") {
		t.Errorf("%v: %s", err, out)
	}
}

func FuzzSettleKeystore(f *testing.F) {
	f.Add(jks(began, "a", "b")[:])
	f.Fuzz(func(t *testing.T, text []byte) {
		// Most would fail at the sum, so it is put right.
		if len(text) > 20 {
			body := text[:len(text)-20]
			text = append(bytes.Clone(body), storeSum(body)...)
		}
		settled, err := sortKeystore(text, packaged)
		if err != nil {
			return
		}
		again, err := sortKeystore(settled, packaged)
		if err != nil || !bytes.Equal(settled, again) || len(settled) != len(text) {
			t.Errorf("%v: %x became %x", err, text, settled)
		}
	})
}
