package receipt

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// PayloadType is the type of the signed payload. The signature covers it, so a receipt's signature is valid for no other document.
const PayloadType = "application/vnd.sandbox-run.receipt.v1+json"

// Envelope is a signed statement.
type Envelope struct {
	PayloadType string      `json:"payloadType"`
	Payload     string      `json:"payload"`
	Signatures  []Signature `json:"signatures"`
}

// Signature is one signature of an envelope; our envelopes have exactly one.
type Signature struct {
	KeyID string `json:"keyid"`
	Sig   string `json:"sig"`
}

// signed returns the bytes that DSSE signs: no two pairs of type and payload give the same bytes. (go-securesystemslib's package dsse
// imports golang.org/x/crypto/ssh and with it crypto/x509, which the thin executable must not link, and accepts two spellings of base64.)
func signed(payloadType string, payload []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %s %s %s %s", strconv.Itoa(len(payloadType)), payloadType, strconv.Itoa(len(payload)), payload)
}

// PublicKey is the public half of a server's key.
type PublicKey ed25519.PublicKey

// spki and pkcs8 are the fixed start of Ed25519 keys in the standard formats (RFC 8410). The rest of such a file is the 32 bytes of
// the key, so crypto/x509, which is slow to start, is not needed.
var (
	spki  = []byte{0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00}
	pkcs8 = []byte{0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20}
)

const (
	publicBlock  = "PUBLIC KEY"
	privateBlock = "PRIVATE KEY"
	idLength     = 16
)

// ID returns the key's name in receipts: the first 16 digits of its digest.
func (k PublicKey) ID() string { return audit.Digest(append(bytes.Clone(spki), k...))[:idLength] }

// PEM returns the key in the form that openssl reads.
func (k PublicKey) PEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: publicBlock, Bytes: append(bytes.Clone(spki), k...)}))
}

// String returns the key on one line: base64 of its 32 bytes.
func (k PublicKey) String() string { return base64.StdEncoding.EncodeToString(k) }

// ParsePublicKey reads the output of PEM and String, and the answer of GET /v1/receipt-key.
func ParsePublicKey(text []byte) (PublicKey, error) {
	bad := func(format string, args ...any) (PublicKey, error) {
		return nil, &sandbox.Error{
			Op: "key", Kind: sandbox.ErrInvalid, Err: fmt.Errorf(format, args...),
			Hint: "give an Ed25519 public key as PEM, as base64, or the answer of GET /v1/receipt-key",
		}
	}
	text = bytes.TrimSpace(text)
	if bytes.HasPrefix(text, []byte("{")) {
		var doc KeyDocument
		if err := json.Unmarshal(text, &doc); err != nil {
			return bad("%w", err)
		}
		if doc.Algorithm != Algorithm {
			return bad("the key's algorithm is %q; receipts use %s", doc.Algorithm, Algorithm)
		}
		text = []byte(doc.PublicKey)
	}
	if block, rest := pem.Decode(text); block != nil {
		switch raw, ok := bytes.CutPrefix(block.Bytes, spki); {
		case block.Type == privateBlock:
			return bad("this is a private key; keep it secret")
		case block.Type != publicBlock || !ok || len(raw) != ed25519.PublicKeySize:
			return bad("%s: not an Ed25519 public key", block.Type)
		case len(bytes.TrimSpace(rest)) > 0:
			return bad("more text after the key")
		default:
			return PublicKey(raw), nil
		}
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(string(text))
	if err != nil {
		return bad("neither PEM nor base64")
	}
	if len(raw) != ed25519.PublicKeySize {
		return bad("%d bytes; a key has %d", len(raw), ed25519.PublicKeySize)
	}
	return PublicKey(raw), nil
}

// Algorithm is the signature algorithm of receipts.
const Algorithm = "ed25519"

// KeyDocument is the answer of GET /v1/receipt-key.
type KeyDocument struct {
	KeyID     string `json:"key_id" doc:"Names the key in receipts"`
	Algorithm string `json:"algorithm" doc:"ed25519"`
	PublicKey string `json:"public_key" doc:"Base64 of the key's 32 bytes"`
	PEM       string `json:"pem" doc:"The same key as PEM"`
}

// Document returns the key as the answer of GET /v1/receipt-key.
func (k PublicKey) Document() KeyDocument {
	return KeyDocument{KeyID: k.ID(), Algorithm: Algorithm, PublicKey: k.String(), PEM: k.PEM()}
}

// Signer signs with one server's key.
type Signer struct {
	key    ed25519.PrivateKey
	public PublicKey
}

// NewSigner returns a Signer with the key of a seed of 32 bytes.
func NewSigner(seed []byte) (*Signer, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, sandbox.Invalid("receipt key", "the seed has %d bytes; it needs %d", len(seed), ed25519.SeedSize)
	}
	key := ed25519.NewKeyFromSeed(seed)
	public, _ := key.Public().(ed25519.PublicKey) // Public always returns this type
	return &Signer{key: key, public: PublicKey(public)}, nil
}

// Public returns the key with which receipts are verified.
func (s *Signer) Public() PublicKey { return s.public }

// Sign makes a receipt. It sets Server.
func (s *Signer) Sign(st Statement) (*Envelope, error) {
	st.Server = s.public.ID()
	st.Time = st.Time.UTC()
	payload, err := json.Marshal(st)
	if err != nil {
		return nil, &sandbox.Error{Op: "receipt", Err: err}
	}
	return &Envelope{
		PayloadType: PayloadType, Payload: base64.StdEncoding.EncodeToString(payload),
		Signatures: []Signature{{KeyID: st.Server, Sig: base64.StdEncoding.EncodeToString(ed25519.Sign(s.key, signed(PayloadType, payload)))}},
	}, nil
}

// ErrForged is the error that Verify wraps when the signature does not match the receipt.
var ErrForged = errors.New("the signature does not match")

// OtherKeyError reports a receipt that was signed with another key than the given one.
type OtherKeyError struct{ Signed, Have string }

func (e *OtherKeyError) Error() string {
	return fmt.Sprintf("receipt: signed with key %q, but the given key is %s", e.Signed, e.Have)
}

// Extract finds the receipt in text: an envelope, its base64 as in a header, or a document that contains one. result is nil unless the
// document contains the result, too.
func Extract(text []byte) (envelope, result []byte, err error) {
	text = bytes.TrimSpace(text)
	if len(text) > 0 && text[0] != '{' {
		if text, err = base64.StdEncoding.Strict().DecodeString(string(text)); err != nil {
			return nil, nil, invalid(errors.New("the text is neither JSON nor base64"))
		}
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return nil, nil, invalid(fmt.Errorf("not a JSON document: %w", err))
	}
	switch {
	case members["payloadType"] != nil:
		return text, nil, nil
	case members[memberReceipt] != nil && members["verdict"] != nil && members["stdout"] != nil:
		return members[memberReceipt], text, nil
	case members[memberReceipt] != nil:
		return members[memberReceipt], members[memberResult], nil
	}
	return nil, nil, &sandbox.Error{
		Op: "receipt", Kind: sandbox.ErrInvalid, Err: errors.New("the document is no receipt and contains none"),
		Hint: `request one from the server: {"receipt": true}`,
	}
}

func invalid(err error) error {
	return &sandbox.Error{Op: "receipt", Kind: sandbox.ErrInvalid, Err: err}
}

// Verify opens an envelope with the key of the server that is said to have signed it. Apart from white space, every byte that differs
// from the signed envelope is an error: ErrForged, an *OtherKeyError, or one of kind sandbox.ErrInvalid.
func Verify(envelope []byte, key PublicKey) (*Statement, error) {
	if len(key) != ed25519.PublicKeySize {
		return nil, sandbox.Invalid("key", "the key has %d bytes; it needs %d", len(key), ed25519.PublicKeySize)
	}
	var e Envelope
	strict := json.NewDecoder(bytes.NewReader(envelope))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&e); err != nil {
		return nil, invalid(err)
	}
	// Require the exact names, each once, so that every reader of the envelope reads the same values.
	again, err := json.Marshal(e)
	if err != nil {
		return nil, invalid(err)
	}
	got, err := Canonical(envelope)
	if err != nil {
		return nil, invalid(err)
	}
	if want, err := Canonical(again); err != nil || !bytes.Equal(got, want) {
		return nil, invalid(errors.New("the envelope has unexpected, duplicate or misspelled names"))
	}
	switch {
	case e.PayloadType != PayloadType:
		return nil, invalid(fmt.Errorf("the payload type is %q; receipts have %s", e.PayloadType, PayloadType))
	case len(e.Signatures) != 1:
		return nil, invalid(fmt.Errorf("the envelope has %d signatures; receipts have one", len(e.Signatures)))
	case e.Signatures[0].KeyID != key.ID():
		return nil, &OtherKeyError{Signed: e.Signatures[0].KeyID, Have: key.ID()}
	}
	payload, err := strictBase64(e.Payload)
	if err != nil {
		return nil, invalid(fmt.Errorf("payload: %w", err))
	}
	sig, err := strictBase64(e.Signatures[0].Sig)
	if err != nil {
		return nil, invalid(fmt.Errorf("signature: %w", err))
	}
	if !ed25519.Verify(ed25519.PublicKey(key), signed(e.PayloadType, payload), sig) {
		return nil, fmt.Errorf("receipt: %w", ErrForged)
	}
	var st Statement
	if err := json.Unmarshal(payload, &st); err != nil {
		return nil, invalid(fmt.Errorf("payload: %w", err))
	}
	return &st, nil
}

// strictBase64 accepts only one spelling per value. The decoder itself ignores line ends.
func strictBase64(text string) ([]byte, error) {
	if strings.ContainsAny(text, "\r\n") {
		return nil, errors.New("base64 with line ends")
	}
	return base64.StdEncoding.Strict().DecodeString(text)
}
