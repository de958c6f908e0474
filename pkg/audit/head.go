package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// head identifies the newest entry. It is kept beside the log, because a log that merely ends earlier is a valid chain.
//
// The file has two slots, written in turn by the parity of seq, each with a digest of its own. A writer that is killed damages at
// most the slot that it was writing; the other slot has the entry before. The file is never replaced, because its lock is the lock
// of the log.
//
//	{"seq":17,"hash":"5f…","size":15103,"check":"c0ffee…"}
type head struct {
	Seq  uint64
	Hash string
	Size int64 // of the current file after that entry; if it is unchanged, no entry was added without the head
}

const (
	slotSize  = 256
	checkLen  = 16
	checkMark = `,"check":"`
)

// body returns a slot up to its check.
func (h head) body() string {
	return `{"seq":` + strconv.FormatUint(h.Seq, 10) + `,"hash":"` + h.Hash + `","size":` + strconv.FormatInt(h.Size, 10)
}

func (h head) slot() []byte {
	body := h.body()
	slot := body + checkMark + Digest([]byte(body))[:checkLen] + `"}`
	return []byte(slot + strings.Repeat(" ", slotSize-1-len(slot)) + "\n")
}

// parseSlot accepts a slot only in the exact form that slot writes.
func parseSlot(slot []byte) (h head, ok bool) {
	rest, ok := strings.CutPrefix(string(slot), `{"seq":`)
	seq, rest, _ := strings.Cut(rest, `,"hash":"`)
	hash, rest, _ := strings.Cut(rest, `","size":`)
	size, _, found := strings.Cut(rest, checkMark)
	if !ok || !found || len(hash) != hashLen {
		return head{}, false
	}
	var err, sizeErr error
	h.Hash = hash
	h.Seq, err = strconv.ParseUint(seq, 10, 64)
	h.Size, sizeErr = strconv.ParseInt(size, 10, 64)
	if err != nil || sizeErr != nil || !bytes.Equal(h.slot(), slot) {
		return head{}, false
	}
	return h, true
}

// readHead returns the newer slot. An empty file is new, and no error.
func readHead(f *os.File) (h head, err error) {
	var slots [2 * slotSize]byte
	n, err := f.ReadAt(slots[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return head{}, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	if n == 0 {
		return head{}, nil
	}
	found := false
	for i := range 2 {
		if s, ok := parseSlot(slots[i*slotSize : (i+1)*slotSize]); ok && (!found || s.Seq > h.Seq) {
			h, found = s, true
		}
	}
	if !found {
		return head{}, errHeadSpoilt
	}
	return h, nil
}

var errHeadSpoilt = errors.New("the head file has no valid record")

func writeHead(f *os.File, h head) error {
	if _, err := f.WriteAt(h.slot(), int64(h.Seq%2)*slotSize); err != nil {
		return fmt.Errorf("write %s: %w", f.Name(), err)
	}
	return nil
}
