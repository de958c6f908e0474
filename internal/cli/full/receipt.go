package full

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/receipt"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func init() { implement("receipt", (*commands).newReceipt) }

func (c *commands) newReceipt() *cobra.Command {
	cmd := c.NewGroup("receipt",
		`A receipt is a server's signed statement of a run: its request, its result, its isolation
and its time. A request with {"receipt": true} gets one. The server's public key
(GET /v1/receipt-key) verifies it.`,
		"  sandbox-run receipt verify receipt.json\n  sandbox-run receipt verify receipt.json --key server.pem --result result.json")
	cmd.AddCommand(c.newReceiptVerify())
	return cmd
}

// receiptInputs are the key and the documents that a receipt is compared with.
type receiptInputs struct{ key, result, request, log string }

func (c *commands) newReceiptVerify() *cobra.Command {
	var e receiptInputs
	cmd := &cobra.Command{
		Use:   "verify [flags] FILE",
		Short: "Verify a receipt and print its content",
		Long: `Checks that a receipt was signed with a server's key and not changed since, and prints
its content. FILE is the value of the header Sandbox-Run-Receipt, the receipt alone, or
the whole answer of GET /v1/runs/ID, whose result is then compared as well. A dash is
standard input. Exits 0 if every check succeeds, and 1 otherwise.

Without --key, the key is that of your own server on this machine. Get the key over a
trusted connection, not together with the receipt.`,
		Example: `  sandbox-run receipt verify receipt.json
  sandbox-run receipt verify receipt.json --key server.pem --result result.json --request body.json`,
		Args: requireNames("file", 1, 1),
		RunE: func(_ *cobra.Command, files []string) error {
			st, err := c.verifyReceipt(files[0], e)
			var failed *notGenuine
			if err != nil && !errors.As(err, &failed) {
				return err
			}
			if failed != nil {
				c.Code = cli.CodeUnhealthy
			}
			if c.JSON {
				return c.WriteJSON(newReceiptReport(st, failed))
			}
			_, err = io.WriteString(c.Std.Out, formatReceipt(st, failed, c.Palette(c.Std.Out)))
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&e.key, "key", "", "the server's public `key`: a file, or base64")
	flags.StringVar(&e.result, "result", "", "also compare the result in this `file`")
	flags.StringVar(&e.request, "request", "", "also compare the body of the request in this `file`")
	flags.StringVar(&e.log, "audit-log", "", "also compare the entry in this `file`, the server's audit log")
	flags.BoolVar(&c.JSON, "json", false, "print the findings as one JSON document")
	return cmd
}

// notGenuine is the error of a receipt that fails a check. Other errors mean that a check was not possible.
type notGenuine struct{ errs []error }

func (e *notGenuine) Error() string { return errors.Join(e.errs...).Error() }

// verifyReceipt checks a receipt. It returns the statement if the signature is valid, even if another check fails.
func (c *commands) verifyReceipt(file string, e receiptInputs) (*receipt.Statement, error) {
	text, err := c.readDocument(file)
	if err != nil {
		return nil, err
	}
	key, err := serverKey(e.key)
	if err != nil {
		return nil, err
	}
	envelope, result, err := receipt.Extract(text)
	if err != nil {
		return nil, &notGenuine{[]error{err}}
	}
	st, err := receipt.Verify(envelope, key)
	if err != nil {
		return nil, &notGenuine{[]error{err}}
	}
	var found []error
	compare := func(err error) {
		if err != nil {
			found = append(found, err)
		}
	}
	if e.result != "" {
		if result, err = c.readDocument(e.result); err != nil {
			return nil, err
		}
	}
	if result != nil {
		compare(st.Matches(result))
	}
	if e.request != "" {
		body, err := c.readDocument(e.request)
		if err != nil {
			return nil, err
		}
		compare(st.MatchesRequest(body))
	}
	if e.log != "" {
		log, err := audit.Open(e.log, audit.Options{})
		if err != nil {
			return nil, err
		}
		compare(st.MatchesLog(log))
	}
	if len(found) > 0 {
		return st, &notGenuine{found}
	}
	return st, nil
}

// maxDocument is the maximum size of a file that is read.
const maxDocument = 256 << 20

func (c *commands) readDocument(name string) ([]byte, error) {
	from := io.Reader(c.Std.In)
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, &sandbox.Error{
				Op: "receipt", Kind: sandbox.ErrInvalid, Err: err, Hint: "name a file with the result of a run, or - for standard input",
			}
		}
		defer f.Close()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, maxDocument+1))
	if err == nil && len(text) > maxDocument {
		err = fmt.Errorf("%s: more than %s", name, sandbox.Size(maxDocument))
	}
	if err != nil {
		return nil, &sandbox.Error{Op: "receipt", Kind: sandbox.ErrInvalid, Err: err}
	}
	return text, nil
}

// serverKey returns the key of --key, or that of the user's own server.
func serverKey(given string) (receipt.PublicKey, error) {
	if given == "" {
		dir, err := receipt.DefaultDir()
		if err != nil {
			return nil, err
		}
		return receipt.OwnKey(dir)
	}
	text, err := os.ReadFile(given)
	if err != nil {
		if key, err := receipt.ParsePublicKey([]byte(given)); err == nil {
			return key, nil
		}
		return nil, sandbox.Invalid("key", "%q is neither a file nor base64 of a key: %w", given, err)
	}
	return receipt.ParsePublicKey(text)
}

type receiptReport struct {
	OK        bool               `json:"ok"`
	Faults    []string           `json:"faults"`
	Statement *receipt.Statement `json:"statement,omitempty"`
}

func newReceiptReport(st *receipt.Statement, failed *notGenuine) receiptReport {
	r := receiptReport{OK: failed == nil, Faults: []string{}, Statement: st}
	if failed != nil {
		for _, err := range failed.errs {
			r.Faults = append(r.Faults, strings.Split(err.Error(), "\n")...)
		}
	}
	return r
}

// formatReceipt formats the statement and the failed checks for people.
func formatReceipt(st *receipt.Statement, failed *notGenuine, paint cli.Palette) string {
	var b strings.Builder
	if st != nil {
		for _, line := range listReceiptFields(st) {
			if line[1] != "" {
				fmt.Fprintf(&b, "%-10s %s\n", line[0], cli.EscapeLine(line[1]))
			}
		}
	}
	report := newReceiptReport(st, failed)
	for _, f := range report.Faults {
		b.WriteString(cli.EscapeLine(f) + "\n")
	}
	if report.OK {
		b.WriteString(paint.Green("ok: signed with key "+st.Server) + "\n")
	} else {
		b.WriteString(paint.Red("not ok") + "\n")
	}
	return b.String()
}

func listReceiptFields(st *receipt.Statement) [][2]string {
	ended := fmt.Sprintf("%s, exit code %d", st.Verdict, st.ExitCode)
	if st.Signal != "" {
		ended += ", " + st.Signal
	}
	lines := [][2]string{
		{"run", st.Run}, {"time", st.Time.Local().Format(time.RFC3339)},
		{"language", strings.TrimSpace(st.Language + " " + st.LanguageVersion)}, {"verdict", ended},
		{"isolation", strings.TrimSpace(st.Isolation.Backend + " " + string(st.Isolation.Tier))},
		{"request", st.RequestSHA256}, {"code", st.CodeSHA256}, {"stdin", st.StdinSHA256},
		{"stdout", st.StdoutSHA256}, {"stderr", st.StderrSHA256},
	}
	for _, f := range st.Files {
		quoted, err := json.Marshal(f.Path)
		if err != nil {
			continue // impossible: every string can be encoded
		}
		lines = append(lines, [2]string{"file", fmt.Sprintf("%s %s", f.SHA256, quoted)})
	}
	if st.FilesLeftOut > 0 {
		lines = append(lines, [2]string{"files", fmt.Sprintf("%d more", st.FilesLeftOut)})
	}
	if n := st.Network; n != nil {
		for _, d := range n.Destinations {
			lines = append(lines, [2]string{"reached", d})
		}
		for _, r := range n.Refused {
			lines = append(lines, [2]string{"refused", r})
		}
		if n.LeftOut > 0 {
			lines = append(lines, [2]string{"network", fmt.Sprintf("%d more", n.LeftOut)})
		}
	}
	if st.Audit != nil {
		lines = append(lines, [2]string{"audit", fmt.Sprintf("entry %d, hash %s", st.Audit.Seq, st.Audit.Hash)})
	}
	return append(lines, [2]string{"result", st.ResultSHA256})
}
