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
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/receipt"
)

// PathReceiptKey is the path of the public key of receipts.
const PathReceiptKey = "/v1/receipt-key"

// ErrNoReceipts is the error of a server without a key to sign with.
var ErrNoReceipts = errors.New("this server signs no receipts")

// Receipt signs the result of a run. It fails with ErrNoReceipts on a server without a key.
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
		return nil, errors.New("receipt: the run has no result to sign")
	case f.Result.Evidence == nil:
		return nil, errors.New("receipt: the digest of the code is missing")
	}
	outcome, err := receipt.ReadJSON(f.Document)
	if err != nil {
		return nil, err
	}
	evidence := f.Result.Evidence
	st := receipt.Statement{
		Run: f.ID, Time: time.Now(), RequestSHA256: f.RequestSHA256, CodeSHA256: evidence.CodeSHA256, StdinSHA256: evidence.InputSHA256,
		Outcome: outcome,
	}
	if st.StdinSHA256 == "" && f.Run != nil && !f.Run.Interactive { // sign the given input, whether the program has read it or not
		if given, err := stdinOf(f.Run); err == nil {
			st.StdinSHA256 = audit.Digest(given)
		}
	}
	if evidence.Entry.Seq != 0 {
		st.Audit = &evidence.Entry
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

// keyHandler answers with the public key of receipts.
func (o *Observation) keyHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if o.signer == nil {
			p := wire.NewProblem(wire.CodeUnsupported, "receipts: %s", ErrNoReceipts)
			p.Hint = "ask the operator to start the server with a key for receipts"
			api.WriteProblem(w, p)
			return
		}
		w.Header().Set("Content-Type", wire.TypeJSON)
		_ = json.NewEncoder(w).Encode(o.signer.Public().Document()) // fails when the client is gone
	})
}
