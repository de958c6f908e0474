package session

import (
	"fmt"

	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
)

// diagnose explains a cell that failed, by what it printed. Files of traces are <cell N>.
func (c *cell) diagnose(r *executor.Result) {
	past := append(c.s.History(), Past{Cell: c.id, Code: c.in.Code})
	f := &diagnose.Failure{Language: r.Language, Version: r.Version, Result: &r.Result}
	for _, p := range past {
		f.Files = append(f.Files, cellFile(p.Cell))
	}
	f.Source = func(file string) (string, bool) {
		for _, p := range past {
			if cellFile(p.Cell) == file {
				return p.Code, true
			}
		}
		return "", false
	}
	r.Diagnosis = diagnose.Of(f)
}

// cellFile is the file of a cell in traces.
func cellFile(cell uint64) string { return fmt.Sprintf("<cell %d>", cell) }
