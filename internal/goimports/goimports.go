// Package goimports finds the packages of the standard library that Go code uses and does not import.
//
// What. The names before dots that the code itself does not declare, looked up in a table.
//
// Place in the flow. The executor completes snippets with it, and templates the code that stands beside a harness. It reads
// text and nothing else.
//
// Lifecycle. None: a function.
//
// Concurrency. Safe.
//
// Limits. Only the standard library, and of names that several packages have the usual one unless what is used of it decides.
// What another file of the same package declares is not seen.
package goimports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Missing lists the packages of the standard library that a file uses by name and does not import.
func Missing(src []byte) []string {
	file, _ := parser.ParseFile(token.NewFileSet(), "", src, 0) // of a broken file as much as there is
	if file == nil {
		return nil
	}
	imported := map[string]bool{}
	for _, i := range file.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			continue
		}
		if i.Name != nil {
			imported[i.Name.Name] = true
		} else {
			imported[PackageName(p)] = true
		}
	}
	unknown := make(map[*ast.Ident]bool, len(file.Unresolved))
	for _, id := range file.Unresolved {
		unknown[id] = true
	}
	wanted := map[string][]string{} // package name: what is used of it
	ast.Inspect(file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && unknown[x] && !imported[x.Name] {
				wanted[x.Name] = append(wanted[x.Name], sel.Sel.Name)
			}
		}
		return true
	})
	var found []string
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if p := standardPackage(name, wanted[name]); p != "" {
			found = append(found, p)
		}
	}
	return found
}

// PackageName is what a package is called by default, as far as its path tells.
func PackageName(p string) string {
	base := path.Base(p)
	if len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == "" {
		base = path.Base(path.Dir(p))
	}
	return base
}

// standardPackage is the package of the standard library that is meant by a name. Where several have it, what is used of it
// decides, and else the one that is used most.
func standardPackage(name string, symbols []string) string {
	for _, c := range contested {
		if c.name == name && slices.ContainsFunc(symbols, func(s string) bool { return slices.Contains(strings.Fields(c.symbols), s) }) {
			return c.path
		}
	}
	for p := range strings.FieldsSeq(standardPackages) {
		if PackageName(p) == name {
			return p
		}
	}
	return ""
}

// contested are names that several packages have, with what only this one of them exports.
var contested = [...]struct{ name, path, symbols string }{
	{"rand", "math/rand/v2", "N IntN Int32N Int64N UintN Uint32N Uint64N Uint NewPCG NewChaCha8"},
	{"rand", "crypto/rand", "Reader Prime Text"},
	{"template", "html/template", "HTML HTMLAttr JS JSStr CSS URL Srcset"},
	{"scanner", "go/scanner", "ErrorList PrintError ScanComments"},
	{"pprof", "net/http/pprof", "Index Cmdline Symbol Trace"},
}

// standardPackages are those that programs import, of names that several have the usual one first.
const standardPackages = `
archive/tar archive/zip bufio bytes cmp compress/bzip2 compress/flate compress/gzip compress/lzw compress/zlib container/heap
container/list container/ring context crypto crypto/aes crypto/cipher crypto/des crypto/dsa crypto/ecdh crypto/ecdsa crypto/ed25519
crypto/elliptic crypto/hkdf crypto/hmac crypto/md5 crypto/mlkem crypto/pbkdf2 crypto/rc4 crypto/rsa crypto/sha1 crypto/sha256 crypto/sha3
crypto/sha512 crypto/subtle crypto/tls crypto/x509 crypto/x509/pkix database/sql database/sql/driver debug/buildinfo debug/dwarf debug/elf
debug/gosym debug/macho debug/pe embed encoding encoding/ascii85 encoding/asn1 encoding/base32 encoding/base64 encoding/binary
encoding/csv encoding/gob encoding/hex encoding/json encoding/pem encoding/xml errors expvar flag fmt go/ast go/build go/constant go/doc
go/format go/importer go/parser go/printer go/token go/types go/version hash hash/adler32 hash/crc32 hash/crc64 hash/fnv hash/maphash html
image image/color image/color/palette image/draw image/gif image/jpeg image/png index/suffixarray io io/fs io/ioutil iter log log/slog
log/syslog maps math math/big math/bits math/cmplx math/rand mime mime/multipart mime/quotedprintable net net/http net/http/cookiejar
net/http/httptest net/http/httptrace net/http/httputil net/mail net/netip net/rpc net/rpc/jsonrpc net/smtp net/textproto net/url os
os/exec os/signal os/user path path/filepath plugin reflect regexp regexp/syntax runtime runtime/coverage runtime/debug runtime/metrics
runtime/pprof runtime/trace slices sort strconv strings structs sync sync/atomic syscall testing testing/fstest testing/iotest
testing/quick testing/slogtest testing/synctest text/scanner text/tabwriter text/template text/template/parse time unicode unicode/utf16
unicode/utf8 unique unsafe weak`
