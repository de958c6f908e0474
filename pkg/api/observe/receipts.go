package observe

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/receipt"
)

// PathReceiptKey is where the key is that receipts are checked with.
const PathReceiptKey = "/v1/receipt-key"

// ErrNoReceipts is a server that has no key to sign with.
var ErrNoReceipts = errors.New("this server signs no receipts")

// Receipt signs what became of a run.
func (o *Observation) Receipt(_ context.Context, f *api.Finished) (json.RawMessage, error) {
	text, err := sign(o.signer, f)
	outcome := "signed"
	if err != nil {
		outcome = "failed"
	}
	o.metrics.receipts.WithLabelValues(outcome).Inc()
	return text, err
}

func sign(by *receipt.Signer, f *api.Finished) (json.RawMessage, error) {
	switch {
	case by == nil:
		return nil, ErrNoReceipts
	case f.Result == nil || f.Document == nil:
		return nil, errors.New("receipt: there is no result to sign")
	case f.Result.Evidence == nil:
		return nil, errors.New("receipt: nothing is known of the code that was run")
	}
	outcome, err := receipt.ReadJSON(f.Document)
	if err != nil {
		return nil, err
	}
	seen := f.Result.Evidence
	st := receipt.Statement{
		Run: f.ID, Time: time.Now(), RequestSHA256: f.RequestSHA256, CodeSHA256: seen.CodeSHA256, StdinSHA256: seen.InputSHA256, Outcome: outcome,
	}
	if st.StdinSHA256 == "" && f.Run != nil && !f.Run.Interactive { // it was given, whether the program has read it or not
		if given, err := stdinOf(f.Run); err == nil {
			st.StdinSHA256 = receipt.Digest(given)
		}
	}
	if seen.Entry.Seq != 0 {
		st.Audit = &seen.Entry
	}
	envelope, err := by.Sign(st)
	if err != nil {
		return nil, err
	}
	return json.Marshal(envelope)
}

func stdinOf(r *wire.Run) ([]byte, error) {
	if r.StdinEncoding == "base64" {
		return base64.StdEncoding.DecodeString(r.Stdin)
	}
	return []byte(r.Stdin), nil
}

// keyHandler tells the key that receipts are checked with.
func (o *Observation) keyHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any = &wire.Problem{
			Type: wire.ProblemBase + wire.CodeUnsupported, Title: "Not supported here", Status: http.StatusNotImplemented, Code: wire.CodeUnsupported,
			Detail: ErrNoReceipts.Error(), Instance: "",
		}
		kind, status := wire.TypeProblem, http.StatusNotImplemented
		if o.signer != nil {
			answer, kind, status = o.signer.Public().Document(), wire.TypeJSON, http.StatusOK
		}
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		if r.Method != http.MethodHead {
			_ = json.NewEncoder(w).Encode(answer) // who no longer reads does not matter
		}
	})
}
