package sandbox

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// For any writes, and wherever space or disk end: the head and the tail are kept, at most OutputMemory of them in
// memory, the dropped bytes are counted, and the space is returned.
func TestOutputStore(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		keep := rapid.IntRange(1, 6<<20).Draw(t, "keep")
		limit := rapid.SampledFrom([]Size{0, 0, 1, 2 * MiB, 3 * MiB, 5 * MiB, 100 * MiB}).Draw(t, "limit")
		store := &OutputStore{Dir: dir, Limit: limit}
		if rapid.IntRange(0, 9).Draw(t, "nowhere") == 0 {
			store.Dir = dir + "/missing"
		}
		full := 0
		r := newRecorder(Size(keep), nil, nil, store.For("owner"), func() { full++ })
		noise := make([]byte, 300<<10)
		for i := range noise {
			noise[i] = byte(i * i >> 7)
		}
		var all []byte
		breakAt := rapid.IntRange(0, 60).Draw(t, "breaks")
		for i := range rapid.IntRange(0, 30).Draw(t, "writes") {
			if f := r.streams[0].kept.file; f != nil && i == breakAt {
				readOnly, err := os.Open(os.DevNull)
				if err != nil {
					t.Fatal(err)
				}
				whole := f.File
				defer whole.Close()
				f.File = readOnly // writes fail as on a full disk
			}
			from := rapid.IntRange(0, 1000).Draw(t, "from")
			data := noise[from : from+rapid.IntRange(0, 299<<10).Draw(t, "length")]
			all = append(all, data...)
			r.Write(0, data)
			if n := cap(r.streams[0].memory) + cap(r.streams[0].buffer); n > int(OutputMemory) {
				t.Fatalf("%d bytes in memory", n)
			}
		}
		if (full == 1) != (len(all) > keep) || full > 1 {
			t.Fatalf("told of %d overflows", full)
		}
		broken := r.streams[0].kept.file != nil && r.streams[0].kept.file.Name() == os.DevNull
		if broken { // the content of the file is undefined; only the counts are checked
			store.Limit = 1
		}
		out, _ := r.handOver()
		short := r.short()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		r.Write(0, []byte("late"))
		if !short && limit == 0 && store.Dir == dir && !broken && uint64(min(keep, len(all))) != uint64(out.Len()) {
			t.Fatalf("%d bytes of %d were kept, %d could be", out.Len(), len(all), keep)
		}
		if out.Total != uint64(len(all)) || out.Len() > int64(keep) || out.Truncated() != (out.Len() < int64(len(all))) {
			t.Fatalf("total %d of %d, kept %d of %d, truncated %v", out.Total, len(all), out.Len(), keep, out.Truncated())
		}
		if !broken {
			head := out.HeadLen()
			want := append(slices.Clone(all[:head]), all[int64(len(all))-(out.Len()-head):]...)
			if !bytes.Equal(out.Bytes(), want) {
				t.Fatalf("%d bytes are not head and tail", out.Len())
			}
			noTail := short && head == out.Len() // the file broke when its tail was a ring
			if out.Truncated() && head != (out.Len()+1)/2 && !noTail {
				t.Fatalf("a head of %d in %d", head, out.Len())
			}
			edges := out.Edges(64 << 10)
			if n := min(32<<10, len(edges)/2); len(edges) > 64<<10 || !bytes.Equal(edges[:n], want[:n]) ||
				!bytes.Equal(edges[len(edges)-n:], want[len(want)-n:]) {
				t.Fatalf("edges of %d bytes", len(edges))
			}
		}
		if limit > 0 && store.Used() > limit/2+1 {
			t.Fatalf("%d of %d taken by one", store.Used(), limit)
		}
		out.Close()
		out.Close()
		if store.Used() != 0 || len(store.owners) != 0 {
			t.Fatalf("%d not returned", store.Used())
		}
		if _, err := out.WriteTo(new(bytes.Buffer)); (out.kept != nil) != errors.Is(err, ErrState) {
			t.Fatalf("closed: %v", err)
		}
	})
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// One owner can not take the space of the others.
func TestOutputStoreShares(t *testing.T) {
	store := &OutputStore{Limit: 8 * MiB, Dir: t.TempDir()}
	keep := func(owner string) Output {
		r := newRecorder(16*MiB, nil, nil, store.For(owner), nil)
		r.Write(0, []byte(strings.Repeat("x", 20<<20)))
		out, _ := r.handOver()
		return out
	}
	first, second := keep("greedy"), keep("other")
	if first.Len() < 4<<20 || first.Len() > 5<<20 || second.Len() < 2<<20 {
		t.Errorf("%d and %d bytes", first.Len(), second.Len())
	}
	first.Close()
	if again := keep("other"); again.Len() <= int64(OutputMemory) {
		t.Errorf("%d bytes after space was returned", again.Len())
	}
}
