package executor

import (
	"context"
	"encoding/json"
	"io"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// maxTables bounds the file with the results of a query.
const maxTables = 8 * sandbox.MiB

// takeTables reads the results of a query as data. A program that ended before it wrote them has none.
func (x *execution) takeTables(ctx context.Context) error {
	selection := sandbox.Selection{Patterns: []string{x.plan.Tables}, MaxFiles: 1, MaxBytes: maxTables}
	left, err := x.e.manager.Take(ctx, x.id, selection, func(_ sandbox.File, _ sandbox.Size, r io.Reader) error {
		data := json.NewDecoder(r)
		data.UseNumber() // keeps all digits of a large number
		if err := data.Decode(&x.out.Tables); err != nil {
			x.out.Tables = nil
			x.out.Notes = append(x.out.Notes, "the results as data are incomplete: "+err.Error())
		}
		return nil
	})
	for _, u := range left {
		x.out.Notes = append(x.out.Notes, "the results as data were not taken: "+u.Reason)
	}
	return err
}
