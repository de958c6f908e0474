package repl

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
)

// Bounds of a history.
const (
	maxHistory   = 2000     // cells that are read
	maxPast      = 64 << 10 // bytes of a cell
	trimHistory  = 4 << 20  // bytes of a file that is shortened when it is opened
	lockPatience = time.Second
)

// History is what a person has typed, in a file of one language that is private to the user. It is the history source of the editor.
type History struct {
	dir   *userdir.Dir // nil: in memory
	file  string
	cells []string
}

// OpenHistory opens the history of a language. With an error there is one, too, that is kept in memory.
func OpenHistory(language string) (*History, error) {
	h := &History{file: language}
	base, err := userdir.State()
	if err != nil {
		return h, err
	}
	dir, err := userdir.OpenDir(filepath.Join(base, "history"), userdir.Write)
	if err != nil {
		return h, err
	}
	h.dir = dir
	err = h.read()
	return h, err
}

// Close closes the directory. It may be called twice.
func (h *History) Close() {
	if h.dir != nil {
		_ = h.dir.Close()
		h.dir = nil
	}
}

// read reads the latest cells: one JSON string a line.
func (h *History) read() error {
	f, err := h.dir.Open(h.file, userdir.Read)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4*maxPast)
	for lines.Scan() {
		var cell string
		if json.Unmarshal(lines.Bytes(), &cell) == nil && cell != "" { // a line that a crash has cut is skipped
			h.cells = append(h.cells, cell)
		}
	}
	if len(h.cells) > maxHistory {
		h.cells = h.cells[len(h.cells)-maxHistory:]
	}
	if st, err := f.Stat(); err == nil && st.Size() > trimHistory {
		return h.rewrite()
	}
	return lines.Err()
}

// rewrite shortens the file to the cells that were read.
func (h *History) rewrite() error {
	return h.dir.Replace(h.file, false, func(w io.Writer) error {
		out := json.NewEncoder(w)
		for _, cell := range h.cells {
			if err := out.Encode(cell); err != nil {
				return err
			}
		}
		return nil
	})
}

// Write adds a cell.
func (h *History) Write(cell string) (int, error) {
	cell = strings.TrimRight(cell, " \n")
	if n := len(h.cells); cell == "" || len(cell) > maxPast || n > 0 && h.cells[n-1] == cell {
		return n, nil
	}
	h.cells = append(h.cells, cell)
	if h.dir == nil {
		return len(h.cells), nil
	}
	return len(h.cells), h.append(cell)
}

func (h *History) append(cell string) error {
	line, err := json.Marshal(cell)
	if err != nil {
		return err
	}
	f, err := h.dir.Open(h.file, userdir.Append)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := userdir.Lock(f, false, lockPatience); err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return err
}

// GetLine returns a cell by its number.
func (h *History) GetLine(i int) (string, error) {
	if i < 0 || i >= len(h.cells) {
		return "", fmt.Errorf("history: no cell %d", i)
	}
	return h.cells[i], nil
}

// Len is the number of cells.
func (h *History) Len() int { return len(h.cells) }

// Dump returns the cells.
func (h *History) Dump() any { return h.cells }
