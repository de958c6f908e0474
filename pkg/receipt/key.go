package receipt

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The files in a server's directory. Both are private to the user; PublicFile is a copy for convenience.
const (
	keyFile    = "receipt.key"
	PublicFile = "receipt.pub"
)

// lockWait is how long OpenSigner waits for another process that makes the same key.
const lockWait = 10 * time.Second

// DefaultDir returns the directory of this user's servers for their key: $XDG_STATE_HOME/sandbox-run/server.
func DefaultDir() (string, error) {
	dir, err := userdir.State()
	if err != nil {
		return "", &sandbox.Error{Op: "receipt key", Err: err}
	}
	return filepath.Join(dir, "server"), nil
}

// OpenSigner returns a Signer with the key of a directory, and makes the key the first time. It refuses a directory that other users
// can write to. It blocks for up to ten seconds while another process makes the key.
func OpenSigner(path string) (_ *Signer, err error) {
	defer func() {
		if err != nil {
			err = &sandbox.Error{Op: "receipt key", Err: err, Hint: "use a directory that only you can write to"}
		}
	}()
	dir, err := userdir.OpenDir(path, userdir.Write)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := dir.Open(keyFile, userdir.Write)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := userdir.Lock(f, false, lockWait); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s: other users can read it (mode %04o); chmod 600 it, or remove it to get a new key", f.Name(),
			info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return nil, err
	}
	if len(text) > 0 {
		s, err := parsePrivate(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		return s, nil
	}
	seed := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(seed) // never fails
	s, err := NewSigner(seed)
	if err != nil {
		return nil, err
	}
	// Write the public half first, so that a private key always has it beside it.
	if err := dir.Replace(PublicFile, true, func(w io.Writer) error {
		_, err := io.WriteString(w, s.Public().PEM())
		return err
	}); err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(pem.EncodeToMemory(&pem.Block{Type: privateBlock, Bytes: append(bytes.Clone(pkcs8), seed...)}), 0); err != nil {
		return nil, errors.Join(err, f.Truncate(0))
	}
	return s, errors.Join(f.Sync(), dir.Sync())
}

func parsePrivate(text []byte) (*Signer, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != privateBlock {
		return nil, errors.New("the file has no private key; remove it to get a new one")
	}
	seed, ok := bytes.CutPrefix(block.Bytes, pkcs8)
	if !ok {
		return nil, errors.New("the file has no Ed25519 private key; remove it to get a new one")
	}
	return NewSigner(seed)
}

// OwnKey returns the public key of the server that uses this directory.
func OwnKey(dir string) (PublicKey, error) {
	text, err := os.ReadFile(filepath.Join(dir, PublicFile))
	if err != nil {
		return nil, &sandbox.Error{Op: "receipt key", Err: err, Hint: "give --key with the answer of GET /v1/receipt-key"}
	}
	return ParsePublicKey(text)
}
