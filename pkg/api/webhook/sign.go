package webhook

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of a delivery, as the Standard Webhooks specification names them.
const (
	HeaderID        = "Webhook-Id"        // the same for every attempt
	HeaderTimestamp = "Webhook-Timestamp" // seconds since 1970, when this attempt was signed
	HeaderSignature = "Webhook-Signature" // v1,BASE64 of HMAC-SHA256(secret, ID + "." + TIMESTAMP + "." + BODY); only with a secret
)

// secretPrefix marks a secret that is written in base64.
const secretPrefix = "whsec_"

// minSecret is the shortest secret that can not be guessed.
const minSecret, maxSecret = 16, 512

// secretKey returns the key of a secret.
func secretKey(secret string) ([]byte, error) {
	key := []byte(secret)
	if text, ok := strings.CutPrefix(secret, secretPrefix); ok {
		var err error
		if key, err = base64.StdEncoding.DecodeString(text); err != nil {
			return nil, fmt.Errorf("after %s the secret must be base64", secretPrefix)
		}
	}
	if len(key) < minSecret || len(key) > maxSecret {
		return nil, fmt.Errorf("the secret has %d bytes; give %d to %d", len(key), minSecret, maxSecret)
	}
	return key, nil
}

// Sign returns the value of HeaderSignature for a body that is sent at that time.
func Sign(secret, id string, at time.Time, body []byte) (string, error) {
	return sign(secret, id, at, bytes.NewReader(body))
}

func sign(secret, id string, at time.Time, body io.Reader) (string, error) {
	key, err := secretKey(secret)
	if err != nil {
		return "", err
	}
	sum, err := mac(key, id, strconv.FormatInt(at.Unix(), 10), body)
	return "v1," + base64.StdEncoding.EncodeToString(sum), err
}

func mac(key []byte, id, timestamp string, body io.Reader) ([]byte, error) {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(id + "." + timestamp + "."))
	_, err := io.Copy(h, body)
	return h.Sum(nil), err
}

// Tolerance is how far a request's timestamp may be from the receiver's clock in Verify.
const Tolerance = 5 * time.Minute

// ErrSignature is the error of Verify for a request that is not signed with the secret, or is too old.
var ErrSignature = errors.New("webhook: the signature does not match")

// Verify checks that a received request is signed with the secret, and not longer ago than Tolerance. A receiver must also compare
// webhook-id with the ids that it has seen: every attempt has the same.
func Verify(header http.Header, body []byte, secret string, now time.Time) error {
	key, err := secretKey(secret)
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	timestamp := header.Get(HeaderTimestamp)
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: %s is %.40q", ErrSignature, HeaderTimestamp, timestamp)
	}
	if age := now.Sub(time.Unix(seconds, 0)); age > Tolerance || age < -Tolerance {
		return fmt.Errorf("%w: it was made %v ago", ErrSignature, age.Round(time.Second))
	}
	want, _ := mac(key, header.Get(HeaderID), timestamp, bytes.NewReader(body)) // reading memory never fails
	for _, s := range strings.Fields(header.Get(HeaderSignature)) {             // several while a secret is being replaced
		text, ok := strings.CutPrefix(s, "v1,")
		got, err := base64.StdEncoding.DecodeString(text)
		if ok && err == nil && hmac.Equal(got, want) {
			return nil
		}
	}
	return ErrSignature
}
