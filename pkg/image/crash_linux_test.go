package image_test

import (
	"bufio"
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func start(t *testing.T, s *image.Store, what string, more ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), append(more, "IMAGE_TEST_CHILD="+what, "IMAGE_TEST_STORE="+s.Dir())...)
	said := new(bytes.Buffer)
	cmd.Stderr = said
	return cmd, said
}

// Another process holds an image, until it is killed.
func TestLeaseOfAnother(t *testing.T) {
	s := newStore(t)
	added(t, s, "held", archive(t, file("f", "x")))
	cmd, said := start(t, s, "hold")
	in, err := cmd.StdinPipe()
	must(t, err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer cmd.Wait()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if read(t, strings.TrimSpace(line), "f") != "x" {
		t.Error(line)
	}
	if _, _, err := s.Remove("held", false); !errors.Is(err, image.ErrInUse) || !errors.Is(err, sandbox.ErrState) {
		t.Error(err)
	}
	if _, err := s.Lookup("held"); err != nil {
		t.Error(err)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if _, removed, err := s.Remove("held", false); err != nil || !removed {
		t.Errorf("%v, %v", removed, err)
	}
}

// Several processes add, use, tag, remove and prune the same images; the test kills some of them at any moment. All visible
// images are complete, and leftovers are removed.
func TestConcurrentAndKilled(t *testing.T) {
	testenv.NeedSystem(t)
	s := newStore(t)
	rounds, kills := "6", 5
	if testenv.All() {
		rounds, kills = "100", 60
	}
	var steady []*exec.Cmd
	var said []*bytes.Buffer
	for range 2 {
		cmd, e := start(t, s, "churn", "IMAGE_TEST_ROUNDS="+rounds)
		must(t, cmd.Start())
		steady, said = append(steady, cmd), append(said, e)
	}
	for range kills {
		cmd, _ := start(t, s, "churn", "IMAGE_TEST_ROUNDS=1000000")
		must(t, cmd.Start())
		time.Sleep(time.Duration(20+rand.IntN(200)) * time.Millisecond)
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		checkVisible(t, s)
	}
	for i, cmd := range steady {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, said[i])
		}
	}
	checkVisible(t, s)
	_, err := s.Prune(t.Context(), image.PruneOptions{All: true})
	must(t, err)
	isEmptyAfterDay(t, s)
}

func checkVisible(t *testing.T, s *image.Store) {
	t.Helper()
	all, err := s.List()
	must(t, err)
	for _, img := range all {
		l, err := s.Use(img)
		if errors.Is(err, image.ErrNotFound) {
			continue // removed meanwhile
		}
		must(t, err)
		which := read(t, l.Dir(), "own/0/file")[0] - '0'
		if err := checkChurned(l.Dir(), int(which)); err != nil {
			t.Error(err)
		}
		must(t, l.Close())
	}
}

// After a power cut, files of a root that was not on the disk yet may be empty: it is unpacked again.
func TestPowerCut(t *testing.T) {
	s := newStore(t)
	img := added(t, s, "x", gzipped(t, archive(t, file("f", "content"))))
	root := filepath.Join(s.Dir(), "roots", img.ID[7:])
	if !exists(t, root, "synced") {
		t.Fatal("the file synced is missing")
	}
	damage := func() {
		must(t, os.WriteFile(filepath.Join(root, "boot"), []byte("another boot\n"), 0o600))
		must(t, os.WriteFile(filepath.Join(root, "root", "f"), nil, 0o644))
	}
	damage()
	if dir := used(t, s, img); read(t, dir, "f") != "" {
		t.Error("what is on the disk was unpacked again") // the control
	}
	must(t, os.Remove(filepath.Join(root, "synced")))
	damage()
	if dir := used(t, s, img); read(t, dir, "f") != "content" {
		t.Error("it is still damaged")
	}
	must(t, os.RemoveAll(root)) // or gone altogether
	if dir := used(t, s, img); read(t, dir, "f") != "content" {
		t.Error("it is still gone")
	}
	if exists(t, root, "synced") {
		t.Error("a lease has waited for the disk")
	}
	must(t, s.Collect(t.Context()))
	if !exists(t, root, "synced") {
		t.Error("the file synced is missing")
	}
	if entries, err := os.ReadDir(filepath.Join(s.Dir(), "work")); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// What a killed process can leave, made by hand: everything goes, nothing is shown.
func TestCollect(t *testing.T) {
	s := newStore(t)
	img := added(t, s, "x", archive(t, file("f", "x")))
	stray := strings.Repeat("ab", 32)
	for _, p := range []string{"work/DEAD/tree/root/closed", "roots/" + stray + "/root", "roots/junk"} {
		must(t, os.MkdirAll(filepath.Join(s.Dir(), p), 0o700))
	}
	must(t, os.WriteFile(filepath.Join(s.Dir(), "work/DEAD/tree/root/closed/f"), nil, 0))
	must(t, os.Chmod(filepath.Join(s.Dir(), "work/DEAD/tree/root/closed"), 0))
	for _, p := range []string{"blobs/" + stray, "blobs/.NEW", "images/.NEW", "partial/RANDOM"} {
		must(t, os.WriteFile(filepath.Join(s.Dir(), p), []byte("x"), 0o600))
	}
	must(t, os.Symlink(stray+" docker.io/library/ghost:latest", filepath.Join(s.Dir(), "names/.NEW")))
	if all, err := s.List(); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	must(t, s.Collect(t.Context()))
	for _, p := range []string{"work/DEAD", "roots/" + stray, "blobs/" + stray, "blobs/.NEW", "images/.NEW", "partial/RANDOM", "names/.NEW"} {
		if exists(t, s.Dir(), p) {
			t.Errorf("%s is left", p)
		}
	}
	if read(t, used(t, s, img), "f") != "x" {
		t.Error("too much was removed")
	}
}
