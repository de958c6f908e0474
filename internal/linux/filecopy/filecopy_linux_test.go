package filecopy

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWithin(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	if err := os.WriteFile(source, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, most := range []int64{0, 1, 4097, int64(len(content)), 1 << 40} {
		from, err := os.Open(source)
		if err != nil {
			t.Fatal(err)
		}
		defer from.Close()
		to, err := os.CreateTemp(dir, "copy")
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		if err := Within(int(to.Fd()), int(from.Fd()), most); err != nil {
			t.Fatal(err)
		}
		want := content[:min(most, int64(len(content)))]
		if got, err := os.ReadFile(to.Name()); err != nil || !bytes.Equal(got, want) {
			t.Errorf("at most %d: %d bytes, %v", most, len(got), err)
		}
	}
	if err := Within(-1, -1, 1); !errors.Is(err, unix.EBADF) {
		t.Error(err)
	}
}
