package key

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strings"
)

// The parts of a token. It has only letters and digits of base32: a double click selects all of it, and no two of them look
// alike.
const (
	Prefix      = "sbx_"
	idLen       = 10 // 50 bits: an id is a name, not a secret
	secretBytes = 32
	secretLen   = 52
	sumLen      = 7
	// TokenLen is the length of every token.
	TokenLen = len(Prefix) + idLen + 1 + secretLen + sumLen
)

var letters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newID returns a random id for a key.
func newID() string {
	var b [7]byte
	_, _ = rand.Read(b[:]) // never fails: without randomness it ends the process
	return letters.EncodeToString(b[:])[:idLen]
}

// newToken returns a new token for a key, and the hash that the store keeps.
func newToken(id string) (token, hash string) {
	var secret [secretBytes]byte
	_, _ = rand.Read(secret[:]) // as above
	body := Prefix + id + "_" + letters.EncodeToString(secret[:])
	token = body + checksum(body)
	return token, hashOf(token)
}

func checksum(body string) string {
	var sum [4]byte
	binary.BigEndian.PutUint32(sum[:], crc32.ChecksumIEEE([]byte(body)))
	return letters.EncodeToString(sum[:])
}

// hashOf returns the hash of a token, as the store keeps it.
func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// idOf returns the id in a token. It is false for a text that no Store has made; the checksum shows that without a look at the
// keys.
func idOf(token string) (id string, ok bool) {
	if len(token) != TokenLen || !strings.HasPrefix(token, Prefix) || token[len(Prefix)+idLen] != '_' {
		return "", false
	}
	body := token[:TokenLen-sumLen]
	if checksum(body) != token[TokenLen-sumLen:] || !isID(token[len(Prefix):len(Prefix)+idLen]) {
		return "", false
	}
	return token[len(Prefix) : len(Prefix)+idLen], true
}

func isID(s string) bool {
	return len(s) == idLen && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz234567") == ""
}
