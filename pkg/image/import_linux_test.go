package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// pipe is a reader that is no file.
type pipe struct{ io.Reader }

func exported(t testing.TB, s *image.Store, f image.Format, refs ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	must(t, s.Export(t.Context(), refs, &b, f))
	return b.Bytes()
}

// What leaves a store is the same in another, by every way.
func TestExportImport(t *testing.T) {
	from := newStore(t)
	layers := ordinaryLayers(t)
	config := []byte(`{"architecture":"amd64","os":"linux","config":{"Env":["A=b"]},"created":"2024-01-02T03:04:05Z"}`)
	src := sourceOf("app:v1", gzipped(t, layers[0]), zstded(t, layers[1]), layers[2])
	src.Config = config
	img, err := from.Add(t.Context(), src)
	must(t, err)
	other := added(t, from, "ghcr.io/x/other", layers[2])
	_, err = from.Tag("app:v1", "app:also")
	must(t, err)
	want := tree(t, used(t, from, img))

	check := func(t *testing.T, s *image.Store, images []*image.Image, sameManifest bool) {
		t.Helper()
		if len(images) != 2 || images[0].ID != img.ID || images[1].ID != other.ID || sameManifest != (images[0].Digest == img.Digest) {
			t.Fatalf("%+v", images)
		}
		if diff := cmp.Diff(want, tree(t, used(t, s, images[0]))); diff != "" {
			t.Error(diff)
		}
		for _, name := range []string{"app:v1", "app:also", "ghcr.io/x/other"} {
			if _, err := s.Lookup(name); err != nil {
				t.Error(err)
			}
		}
	}
	refs := []string{"app:v1", "app:also", "ghcr.io/x/other"}
	for _, f := range []image.Format{image.FormatOCI, image.FormatDocker} {
		data := exported(t, from, f, refs...)
		if !bytes.Equal(data, exported(t, from, f, refs...)) {
			t.Errorf("%s: two exports differ", f)
		}
		path := filepath.Join(t.TempDir(), "x.tar")
		must(t, os.WriteFile(path, data, 0o600))
		for name, load := range map[string]func(s *image.Store) ([]*image.Image, error){
			"file": func(s *image.Store) ([]*image.Image, error) {
				return s.ImportPath(t.Context(), path, image.ImportOptions{})
			},
			"pipe": func(s *image.Store) ([]*image.Image, error) {
				return s.Import(t.Context(), pipe{bytes.NewReader(data)}, image.ImportOptions{})
			},
			"gzip": func(s *image.Store) ([]*image.Image, error) {
				return s.Import(t.Context(), pipe{bytes.NewReader(gzipped(t, data))}, image.ImportOptions{})
			},
			"zstd": func(s *image.Store) ([]*image.Image, error) {
				return s.Import(t.Context(), pipe{bytes.NewReader(zstded(t, data))}, image.ImportOptions{})
			},
		} {
			t.Run(string(f)+" "+name, func(t *testing.T) {
				s := newStore(t)
				images, err := load(s)
				must(t, err)
				check(t, s, images, f == image.FormatOCI)
			})
		}
	}
	t.Run("directory", func(t *testing.T) {
		out := filepath.Join(t.TempDir(), "layout")
		must(t, from.ExportDir(t.Context(), refs, out))
		if err := from.ExportDir(t.Context(), refs, out); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("into what is not empty: %v", err)
		}
		s := newStore(t)
		images, err := s.ImportPath(t.Context(), out, image.ImportOptions{})
		must(t, err)
		check(t, s, images, true)
	})
	t.Run("another name", func(t *testing.T) {
		s := newStore(t)
		images, err := s.Import(t.Context(), bytes.NewReader(exported(t, from, image.FormatDocker, "app:v1")),
			image.ImportOptions{Names: []string{"renamed"}})
		if err != nil || len(images) != 1 || !slices.Equal(images[0].Names, []string{"docker.io/library/renamed:latest"}) {
			t.Errorf("%+v, %v", images, err)
		}
		if _, err := s.Import(t.Context(), bytes.NewReader(exported(t, from, image.FormatDocker, refs...)),
			image.ImportOptions{Names: []string{"renamed"}}); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("one name for two: %v", err)
		}
	})
	if err := from.Export(t.Context(), []string{"none"}, io.Discard, image.FormatOCI); !errors.Is(err, image.ErrNotFound) {
		t.Error(err)
	}
	if err := from.Export(t.Context(), []string{"app:v1"}, io.Discard, "squash"); !errors.Is(err, sandbox.ErrInvalid) {
		t.Error(err)
	}
	if err := from.Export(t.Context(), nil, io.Discard, image.FormatOCI); !errors.Is(err, sandbox.ErrInvalid) {
		t.Error(err)
	}
}

func TestImportRoot(t *testing.T) {
	plain := archive(t, dir("./", 0o755), file("./etc/hostname", "x"), file("manifest.json", `{"a root may":"have one"}`))
	config := image.Config{Env: []string{"A=b"}, Cmd: []string{"/bin/sh"}}
	ids := map[string]bool{}
	for _, data := range [][]byte{plain, gzipped(t, plain), zstded(t, plain)} {
		s := newStore(t)
		images, err := s.Import(t.Context(), pipe{bytes.NewReader(data)}, image.ImportOptions{Names: []string{"root:1"}, Config: config})
		must(t, err)
		if len(images) != 1 || read(t, used(t, s, images[0]), "etc/hostname") != "x" || images[0].Config.Cmd[0] != "/bin/sh" ||
			images[0].Layers[0] != digest(data) {
			t.Errorf("%+v", images)
		}
		ids[images[0].ID] = true
		if _, err := s.Import(t.Context(), bytes.NewReader(data), image.ImportOptions{}); !errors.Is(err, sandbox.ErrInvalid) ||
			!strings.Contains(err.Error(), "--name") {
			t.Error(err)
		}
	}
	if len(ids) != 1 {
		t.Errorf("equal files have different ids: %v", ids)
	}
}

// An import from a pipe without a writer ends with its context.
func TestImportEndsWithContext(t *testing.T) {
	s := newStore(t)
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := s.Import(ctx, r, image.ImportOptions{Names: []string{"x"}}); !errors.Is(err, context.DeadlineExceeded) ||
		time.Since(began) > 30*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

func packFiles(t testing.TB, files ...string) []byte {
	t.Helper()
	var entries []entry
	for i := 0; i < len(files); i += 2 {
		entries = append(entries, file(files[i], files[i+1]))
	}
	return archive(t, entries...)
}

// Archives that are wrong, or worse.
func TestImportRefuses(t *testing.T) {
	layer := archive(t, file("f", "x"))
	config := `{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["` + digest(layer) + `"]}}`
	savedAs := func(c, l string) string {
		text, err := json.Marshal([]map[string]any{{"Config": c, "RepoTags": []string{"x:1"}, "Layers": []string{l}}})
		must(t, err)
		return string(text)
	}
	blobs := "blobs/sha256/"
	for name, c := range map[string]struct {
		data   []byte
		refuse string
	}{
		"control": {packFiles(t, "manifest.json", savedAs("c.json", "l.tar"), "c.json", config, "l.tar", string(layer)), ""},
		"by link": {archive(t, file("manifest.json", savedAs("c.json", "a/l.tar")), file("c.json", config), link("a/l.tar", "../b/l.tar"),
			file("b/l.tar", string(layer))), ""},
		"empty":          {nil, "empty"},
		"junk":           {[]byte(strings.Repeat("junk", 1000)), "archive"},
		"layer missing":  {packFiles(t, "manifest.json", savedAs("c.json", "none.tar"), "c.json", config), "no file"},
		"layer climbs":   {packFiles(t, "manifest.json", savedAs("c.json", "../../../etc/passwd"), "c.json", config), "no file"},
		"layer absolute": {packFiles(t, "manifest.json", savedAs("c.json", "/etc/passwd"), "c.json", config), "no file"},
		"link out": {archive(t, file("manifest.json", savedAs("c.json", "l.tar")), file("c.json", config), link("l.tar", "/etc/passwd")),
			"no file"},
		"link loop": {archive(t, file("manifest.json", savedAs("c.json", "l.tar")), file("c.json", config), link("l.tar", "l.tar")),
			"no file"},
		"layer other": {packFiles(t, "manifest.json", savedAs("c.json", "l.tar"), "c.json", config, "l.tar",
			string(archive(t, file("g", "x")))), "unpacks to"},
		"index junk":   {packFiles(t, "oci-layout", "{}", "index.json", "["), "index.json"},
		"index empty":  {packFiles(t, "oci-layout", "{}", "index.json", `{"schemaVersion":2,"manifests":[]}`), "no image"},
		"blob missing": {packFiles(t, "oci-layout", "{}", "index.json", `{"manifests":[{"digest":"`+digest(layer)+`"}]}`), "no file"},
		"blob other": {packFiles(t, "oci-layout", "{}", "index.json", `{"manifests":[{"digest":"`+digest(layer)+`"}]}`,
			blobs+digest(layer)[7:], "{}"), "is sha256:"},
		"digest climbs": {packFiles(t, "oci-layout", "{}", "index.json", `{"manifests":[{"digest":"sha256:../../../../../etc/passwd"}]}`),
			"not a digest"},
		"other platform": {packFiles(t, "oci-layout", "{}", "index.json",
			`{"manifests":[{"digest":"`+digest(layer)+`","platform":{"os":"linux","architecture":"s390x"}}]}`), "no image for linux/"},
		"index of itself": {selfIndex(t), "too deep"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			images, err := s.Import(t.Context(), bytes.NewReader(c.data), image.ImportOptions{})
			if c.refuse == "" {
				must(t, err)
				if len(images) != 1 || !slices.Equal(images[0].Names, []string{"docker.io/library/x:1"}) {
					t.Errorf("%+v", images)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.refuse) || !errors.Is(err, sandbox.ErrRefused) {
				t.Errorf("%v", err)
			}
			isEmptyAfterDay(t, s)
		})
	}
}

// selfIndex is as near to an index of itself as hashes allow: one in one in one.
func selfIndex(t testing.TB) []byte {
	text := `{"manifests":[]}`
	files := []string{"oci-layout", "{}"}
	for range 8 {
		files = append(files, "blobs/sha256/"+digest([]byte(text))[7:], text)
		text = `{"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"` + digest([]byte(text)) + `"}]}`
	}
	return packFiles(t, append(files, "index.json", text)...)
}

// A directory's links and FIFOs lead nowhere.
func TestImportDirectoryRefuses(t *testing.T) {
	s := newStore(t)
	top := t.TempDir()
	if _, err := s.ImportPath(t.Context(), top, image.ImportOptions{}); err == nil || !strings.Contains(err.Error(), "no OCI layout") {
		t.Error(err)
	}
	must(t, os.WriteFile(filepath.Join(top, "outside"), []byte(`{"manifests":[]}`), 0o600))
	in := filepath.Join(top, "layout")
	must(t, os.Mkdir(in, 0o700))
	must(t, os.Symlink("../outside", filepath.Join(in, "index.json")))
	if _, err := s.ImportPath(t.Context(), in, image.ImportOptions{}); err == nil || !strings.Contains(err.Error(), "no OCI layout") {
		t.Errorf("through a link: %v", err)
	}
	must(t, os.Remove(filepath.Join(in, "index.json")))
	must(t, exec.Command("mkfifo", filepath.Join(in, "index.json")).Run())
	done := make(chan error, 1)
	go func() {
		_, err := s.ImportPath(context.Background(), in, image.ImportOptions{})
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil {
			t.Error("a FIFO was read")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it hangs on a FIFO")
	}
}

// busyRoot is a root of the host's own files in which sh, cat, id and the like run.
func busyRoot(t testing.TB) []byte {
	t.Helper()
	script := `set -e; cd /
	bins="usr/bin/dash usr/bin/cat usr/bin/id usr/bin/ls usr/bin/stat"
	libs=$(for b in $bins; do ldd /$b; done | grep -o '/[^ ]*\.so[^ ]*' | sort -u)
	set --
	for l in $libs; do r=$(readlink -f $l); set -- "$@" "${r#/}" "usr${l#/usr}"; done
	tar -c --numeric-owner --owner=0 --group=0 --no-recursion --ignore-failed-read bin lib lib64 usr usr/bin usr/lib $bins \
		$(printf '%s\n' "$@" | sort -u) 2>/dev/null`
	out, err := exec.Command("sh", "-c", script).Output()
	if err != nil {
		t.Fatalf("tar: %v", err)
	}
	return out
}

// podman takes what is exported, runs it, and what it saves is taken.
func TestPodman(t *testing.T) {
	testenv.NeedRoot(t)
	podman, err := exec.LookPath("podman")
	if err != nil {
		t.Skip("needs podman")
	}
	top, err := os.MkdirTemp("/var/tmp", "image-podman-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	run := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, podman, append([]string{"--root", top + "/root", "--runroot", top + "/run", "--storage-driver", "vfs"},
			args...)...)
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		if err := cmd.Run(); err != nil {
			t.Fatalf("podman %q: %v\n%s%s", args, err, out.Bytes(), said.Bytes())
		}
		return strings.TrimSpace(out.String())
	}
	s := newStore(t)
	img := added(t, s, "exported:v1", gzipped(t, busyRoot(t)), archive(t, file("message", "from an image\n"), file("gone", "x")),
		archive(t, entry{Typeflag: tar.TypeReg, Name: ".wh.gone"}))
	for _, f := range []image.Format{image.FormatOCI, image.FormatDocker} {
		path := filepath.Join(top, string(f)+".tar")
		must(t, os.WriteFile(path, exported(t, s, f, "exported:v1"), 0o600))
		run("load", "-i", path)
		if id := run("image", "inspect", "--format", "{{.Id}}", "docker.io/library/exported:v1"); "sha256:"+
			strings.TrimPrefix(id, "sha256:") != img.ID {
			t.Errorf("%s: it is %s, and was %s", f, id, img.ID)
		}
		mounted := run("image", "mount", "docker.io/library/exported:v1")
		if read(t, mounted, "message") != "from an image\n" || exists(t, mounted, "gone") {
			t.Errorf("%s: another content", f)
		}
		run("image", "unmount", "docker.io/library/exported:v1")
		for _, format := range []string{"docker-archive", "oci-archive"} {
			back := filepath.Join(top, string(f)+"-"+format+".tar")
			run("save", "--format", format, "-o", back, "docker.io/library/exported:v1")
			again := newStore(t)
			images, err := again.ImportPath(t.Context(), back, image.ImportOptions{})
			must(t, err)
			if len(images) != 1 || !slices.Equal(images[0].Names, []string{"docker.io/library/exported:v1"}) {
				t.Fatalf("%s, %s: %+v", f, format, images)
			}
			if diff := cmp.Diff(tree(t, used(t, s, img)), tree(t, used(t, again, images[0]))); diff != "" {
				t.Errorf("%s, %s: %s", f, format, diff)
			}
		}
		run("rmi", "docker.io/library/exported:v1")
	}
}

// dockerd, of its own and apart from any other: `docker load` takes what is exported, and `docker save` is taken.
func TestDocker(t *testing.T) {
	testenv.NeedRoot(t)
	dockerd, err := exec.LookPath("dockerd")
	if err != nil {
		t.Skip("needs dockerd (package docker.io)")
	}
	top, err := os.MkdirTemp("/var/tmp", "image-docker-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	must(t, os.WriteFile(top+"/daemon.json", []byte("{}"), 0o600))
	socket := "unix://" + top + "/docker.sock"
	var log bytes.Buffer
	daemon := exec.Command(dockerd, "--config-file", top+"/daemon.json", "--data-root", top+"/data", "--exec-root", top+"/exec", "--pidfile",
		top+"/pid", "-H", socket,
		"--storage-driver", "vfs", "--bridge", "none", "--iptables=false", "--ip6tables=false", "--log-level", "error")
	daemon.Stdout, daemon.Stderr = &log, &log
	must(t, daemon.Start())
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	t.Cleanup(func() {
		_ = daemon.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			_ = daemon.Process.Kill()
			<-ended
		}
	})
	docker := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, "docker", append([]string{"-H", socket}, args...)...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		if _, err := docker("version"); err == nil {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("dockerd does not answer:\n%s", log.Bytes())
		}
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := docker(args...)
		if err != nil {
			t.Fatalf("docker %q: %v\n%s", args, err, out)
		}
		return out
	}
	s := newStore(t)
	img := added(t, s, "exported:v1", gzipped(t, busyRoot(t)), zstded(t, archive(t, file("message", "from an image\n"), file("gone", "x"))),
		archive(t, entry{Typeflag: tar.TypeReg, Name: ".wh.gone"}))
	path := top + "/x.tar"
	must(t, os.WriteFile(path, exported(t, s, image.FormatDocker, "exported:v1"), 0o600))
	if out := run("load", "-i", path); !strings.Contains(out, "exported:v1") {
		t.Error(out)
	}
	if id := run("image", "inspect", "--format", "{{.Id}}", "exported:v1"); id != img.ID {
		t.Errorf("it is %s, and was %s", id, img.ID)
	}
	run("save", "-o", top+"/back.tar", "exported:v1")
	again := newStore(t)
	images, err := again.ImportPath(t.Context(), top+"/back.tar", image.ImportOptions{})
	must(t, err)
	if len(images) != 1 || images[0].ID != img.ID || !slices.Equal(images[0].Names, img.Names) {
		t.Fatalf("%+v", images)
	}
	if diff := cmp.Diff(tree(t, used(t, s, img)), tree(t, used(t, again, images[0]))); diff != "" {
		t.Error(diff)
	}
}
