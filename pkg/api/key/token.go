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

// The parts of a token. Letters and digits of base32 only: a double click takes it whole, and no two of them look alike.
const (
	Prefix      = "sbx_"
	idLen       = 10 // 50 bits: ids are names, and need not be guessed at
	secretBytes = 32
	secretLen   = 52
	sumLen      = 7
	// TokenLen is how long every token is.
	TokenLen = len(Prefix) + idLen + 1 + secretLen + sumLen
)

var letters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newID makes a name for a key.
func newID() string {
	var b [7]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the process where there is no randomness
	return letters.EncodeToString(b[:])[:idLen]
}

// newToken makes a token for a key, and the hash that is kept of it.
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

// hashOf is what is kept of a token.
func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// idOf takes a token apart. It is false for what no Store has ever made, which can be told without looking at any key.
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
