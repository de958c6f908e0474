package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// head is what the newest entry was, kept beside the log: a log that merely ends earlier is a valid chain.
//
// The file has two slots, written in turn by the parity of seq, each with a digest of its own. A writer that is
// killed spoils at most the slot it was writing, and the other one is the entry before. The file is never
// replaced, because its lock is the log's.
type head struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
	Size int64  `json:"size"` // of the current file after that entry: where it still is, nobody else has written
}

const (
	slotSize  = 256
	checkLen  = 16
	checkMark = `,"check":"`
)

func (h head) slot() []byte {
	body, _ := json.Marshal(h) // numbers and hexadecimal digits can always be marshalled
	body = bytes.TrimSuffix(body, []byte("}"))
	slot := fmt.Appendf(nil, `%s%s%s"}`, body, checkMark, Digest(body)[:checkLen])
	slot = append(slot, bytes.Repeat([]byte(" "), slotSize-1-len(slot))...)
	return append(slot, '\n')
}

func parseSlot(slot []byte) (h head, ok bool) {
	body, check, found := bytes.Cut(bytes.TrimRight(slot, " \n"), []byte(checkMark))
	if !found || len(check) != checkLen+2 || Digest(body)[:checkLen] != string(check[:checkLen]) {
		return head{}, false
	}
	if json.Unmarshal(append(bytes.Clone(body), '}'), &h) != nil || len(h.Hash) != hashLen || h.Size < 0 {
		return head{}, false
	}
	return h, true
}

// readHead returns the newer slot. A file that is empty is new, and no error.
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

var errHeadSpoilt = errors.New("the head file holds nothing of ours")

func writeHead(f *os.File, h head) error {
	if _, err := f.WriteAt(h.slot(), int64(h.Seq%2)*slotSize); err != nil {
		return fmt.Errorf("write %s: %w", f.Name(), err)
	}
	return nil
}
