package build

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"time"
	"unicode/utf16"
)

// keystore is where Debian's packages keep the certificates that Java trusts, and the moment each was put there: the one file of all images
// that would be another with every build.
const keystore = "etc/ssl/certs/java/cacerts"

// A Java key store (JKS): magic, version, number of entries; each entry is a kind, an alias, a time in milliseconds, and of a trusted
// certificate its type and its bytes. At the end is a SHA-1 of a password, a phrase and all that came before, as an integrity check.
const (
	storeMagic    = 0xfeedfeed
	storeVersion  = 2
	storeTrusted  = 2
	storePassword = "changeit"
	storePhrase   = "Mighty Aphrodite"
)

// normalizeKeystore makes the key store the same whenever it is made.
func normalizeKeystore(from io.ReaderAt, entries map[string]*entry, epoch time.Time) error {
	return rewrite(from, entries, keystore, func(text []byte) ([]byte, error) {
		sorted, err := sortKeystore(text, epoch)
		if err != nil {
			return text, nil // another kind of store, in a suite that we do not know: it works, and differs from build to build
		}
		return sorted, nil
	})
}

var errKeystore = errors.New("not a Java key store of trusted certificates")

// sortKeystore puts a store's entries in order, each as of epoch.
func sortKeystore(text []byte, epoch time.Time) ([]byte, error) {
	if len(text) < 12+sha1.Size {
		return nil, errKeystore
	}
	body, sum := text[:len(text)-sha1.Size], text[len(text)-sha1.Size:]
	if !bytes.Equal(storeSum(body), sum) || binary.BigEndian.Uint32(body) != storeMagic || binary.BigEndian.Uint32(body[4:]) != storeVersion {
		return nil, errKeystore
	}
	count := binary.BigEndian.Uint32(body[8:])
	rest := body[12:]
	take := func(n int) []byte {
		if n < 0 || n > len(rest) {
			n, rest = 0, nil
		}
		part := rest[:n]
		rest = rest[n:]
		return part
	}
	var all [][]byte
	for len(rest) > 0 {
		start := rest
		kind := take(4)
		alias := take(2)
		if len(kind) < 4 || binary.BigEndian.Uint32(kind) != storeTrusted || len(alias) < 2 {
			return nil, errKeystore
		}
		take(int(binary.BigEndian.Uint16(alias)))
		when := take(8)
		form := take(2)
		if len(when) < 8 || len(form) < 2 {
			return nil, errKeystore
		}
		take(int(binary.BigEndian.Uint16(form)))
		size := take(4)
		if len(size) < 4 {
			return nil, errKeystore
		}
		if n := binary.BigEndian.Uint32(size); uint64(len(take(int(n)))) != uint64(n) {
			return nil, errKeystore
		}
		one := bytes.Clone(start[:len(start)-len(rest)])
		at := 4 + 2 + int(binary.BigEndian.Uint16(one[4:]))
		binary.BigEndian.PutUint64(one[at:], uint64(epoch.UnixMilli()))
		all = append(all, one)
	}
	if uint64(len(all)) != uint64(count) {
		return nil, errKeystore
	}
	slices.SortFunc(all, bytes.Compare)
	out := append(bytes.Clone(body[:12]), bytes.Join(all, nil)...)
	return append(out, storeSum(out)...), nil
}

func storeSum(body []byte) []byte {
	h := sha1.New()
	for _, c := range utf16.Encode([]rune(storePassword)) {
		h.Write([]byte{byte(c >> 8), byte(c)})
	}
	h.Write([]byte(storePhrase))
	h.Write(body)
	return h.Sum(nil)
}
