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
	source := filepath.Join(t.TempDir(), "source")
	if err := os.WriteFile(source, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, most := range []int64{0, 1, 4097, int64(len(content)), 1 << 40} {
		got := copied(t, source, most)
		if want := content[:min(most, int64(len(content)))]; !bytes.Equal(got, want) {
			t.Errorf("at most %d: %d bytes", most, len(got))
		}
	}
	if _, err := Within(-1, -1, 1); !errors.Is(err, unix.EBADF) {
		t.Error(err)
	}
}

func copied(t *testing.T, source string, most int64) []byte {
	t.Helper()
	from, err := os.Open(source)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.CreateTemp(t.TempDir(), "copy")
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	n, err := Within(int(to.Fd()), int(from.Fd()), most)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(to.Name())
	if err != nil {
		t.Fatal(err)
	}
	if n != int64(len(got)) {
		t.Errorf("%d bytes are said to be copied, %d were", n, len(got))
	}
	return got
}
