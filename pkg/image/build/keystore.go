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

// keystore is the path of the certificates that Java trusts. Debian's packages store the time at which each one was added, so it is the
// only file that differs in every build.
const keystore = "etc/ssl/certs/java/cacerts"

// A Java key store (JKS) has a magic number, a version and the number of entries. An entry has a kind, an alias, a time in milliseconds,
// and for a trusted certificate its type and its bytes. The store ends with a SHA-1 of a password, a phrase and all preceding bytes.
const (
	storeMagic    = 0xfeedfeed
	storeVersion  = 2
	storeTrusted  = 2
	storePassword = "changeit"
	storePhrase   = "Mighty Aphrodite"
)

// normalizeKeystore replaces the times and the order of the key store's entries, which differ in every build.
func normalizeKeystore(from io.ReaderAt, entries map[string]*entry, epoch time.Time) error {
	return rewrite(from, entries, keystore, func(text []byte) ([]byte, error) {
		sorted, err := sortKeystore(text, epoch)
		if err != nil {
			return text, nil // a store of another format works, but differs from build to build
		}
		return sorted, nil
	})
}

var errKeystore = errors.New("not a Java key store of trusted certificates")

// sortKeystore returns the store with its entries sorted and their times set to epoch.
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
