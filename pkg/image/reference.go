package image

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The default registry, and the namespace of its official images.
const (
	DefaultRegistry = "docker.io"
	officialPrefix  = "library/"
	defaultTag      = "latest"
	// LocalPrefix is the prefix of the images that this product builds. No registry has them, so their names are not completed.
	LocalPrefix = "sandbox-run/"

	maxRepository = 255
	maxTag        = 128
)

// Reference is the parsed and completed name of an image.
type Reference struct {
	Registry   string // "docker.io", "localhost:5000"; empty for images that are built on this machine
	Repository string // "library/python"
	Tag        string // "latest"; may be empty with a digest
	Digest     string // "sha256:…", or empty
}

// ParseReference reads NAME[:TAG][@sha256:…] and completes it as Docker does: python is docker.io/library/python:latest.
func ParseReference(s string) (Reference, error) {
	r, err := parseReference(s)
	if err != nil {
		return Reference{}, &sandbox.Error{Op: fmt.Sprintf("image name %q", shorten(s)), Kind: sandbox.ErrInvalid, Err: err}
	}
	return r, nil
}

func parseReference(s string) (r Reference, err error) {
	name := s
	if rest, digest, has := strings.Cut(name, "@"); has {
		if _, err := digestHex(digest); err != nil {
			return r, err
		}
		name, r.Digest = rest, digest
	}
	if i := strings.LastIndexByte(name, ':'); i >= 0 && !strings.Contains(name[i:], "/") {
		name, r.Tag = name[:i], name[i+1:]
		if err := checkTag(r.Tag); err != nil {
			return r, err
		}
	}
	if name == "" {
		return r, errors.New("there is no name; write NAME[:TAG]")
	}
	if len(name) == 64 && isHex(name) {
		return r, errors.New("64 hexadecimal digits are an id, not a name")
	}
	if first, rest, has := strings.Cut(name, "/"); has && isRegistry(first) {
		r.Registry, r.Repository = first, rest
		if err := checkRegistry(first); err != nil {
			return r, err
		}
	} else {
		r.Repository = name
	}
	r.complete()
	if len(r.Registry)+1+len(r.Repository) > maxRepository {
		return r, fmt.Errorf("it is longer than %d characters", maxRepository)
	}
	return r, checkRepository(r.Repository)
}

func (r *Reference) complete() {
	local := r.Registry == "" && strings.HasPrefix(r.Repository, LocalPrefix)
	if r.Registry == "index.docker.io" || r.Registry == "" && !local {
		r.Registry = DefaultRegistry
	}
	if r.Registry == DefaultRegistry && !strings.Contains(r.Repository, "/") {
		r.Repository = officialPrefix + r.Repository
	}
	if r.Tag == "" && r.Digest == "" {
		r.Tag = defaultTag
	}
}

// isRegistry distinguishes the address of a registry from the first part of a repository.
func isRegistry(first string) bool {
	return strings.ContainsAny(first, ".:") || first == "localhost" || strings.ToLower(first) != first
}

func checkRegistry(s string) error {
	host, port, has := strings.Cut(s, ":")
	if strings.HasPrefix(s, "[") { // an IPv6 address
		address, rest, closed := strings.Cut(s[1:], "]")
		if !closed || address == "" || strings.Trim(address, "0123456789abcdefABCDEF:") != "" || rest != "" && rest[0] != ':' {
			return fmt.Errorf("%q is not the address of a registry", s)
		}
		has, port = rest != "", strings.TrimPrefix(rest, ":")
	} else {
		for _, label := range strings.Split(host, ".") {
			if label == "" || strings.Trim(strings.ToLower(label), "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || label[0] == '-' ||
				label[len(label)-1] == '-' {
				return fmt.Errorf("%q is not the address of a registry", s)
			}
		}
	}
	if has && (port == "" || len(port) > 5 || strings.Trim(port, "0123456789") != "") {
		return fmt.Errorf("%q is not the port of a registry", port)
	}
	return nil
}

func checkTag(s string) error {
	if s == "" || len(s) > maxTag {
		return fmt.Errorf("a tag has between 1 and %d characters", maxTag)
	}
	for i, c := range []byte(s) {
		if !isAlnum(c) && c != '_' && (i == 0 || c != '.' && c != '-') {
			return fmt.Errorf("%q is not a tag: letters, digits, and _ . - after the first", s)
		}
	}
	return nil
}

func isAlnum(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// checkRepository accepts components of lower-case letters and digits, separated by one dot, one or two underscores or any number
// of dashes.
func checkRepository(s string) error {
	if strings.ToLower(s) != s {
		return fmt.Errorf("repositories are written in lower case: %q", strings.ToLower(s))
	}
	for _, part := range strings.Split(s, "/") {
		if part == "" {
			return errors.New("a part between slashes is empty")
		}
		if !isAlnum(part[0]) || !isAlnum(part[len(part)-1]) {
			return fmt.Errorf("%q must begin and end with a letter or a digit", part)
		}
		for i := 0; i < len(part); {
			n := 1
			if !isAlnum(part[i]) {
				for i+n < len(part) && !isAlnum(part[i+n]) {
					n++
				}
				if sep := part[i : i+n]; sep != "." && sep != "_" && sep != "__" && strings.Trim(sep, "-") != "" {
					return fmt.Errorf("%q may not hold %q", part, sep)
				}
			}
			i += n
		}
	}
	return nil
}

// String returns the normal form, which the store uses.
func (r Reference) String() string {
	s := r.Name()
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest
	}
	return s
}

// Name returns the reference without tag and digest.
func (r Reference) Name() string {
	if r.Registry == "" {
		return r.Repository
	}
	return r.Registry + "/" + r.Repository
}

// Familiar returns the short form that people write.
func (r Reference) Familiar() string {
	if r.Registry == DefaultRegistry {
		short := strings.TrimPrefix(r.Repository, officialPrefix)
		// Some names are only valid with the registry.
		if again, err := parseReference(short); err == nil && again.Name() == r.Name() {
			r.Registry, r.Repository = "", short
		}
	}
	return r.String()
}

// Normalize returns the normal form of a reference.
func Normalize(ref string) (string, error) {
	r, err := ParseReference(ref)
	return r.String(), err
}

// Familiar returns the short form of a reference; it returns invalid references unchanged.
func Familiar(ref string) string {
	r, err := parseReference(ref)
	if err != nil {
		return ref
	}
	return r.Familiar()
}

const digestPrefix = "sha256:"

// digestHex returns the hexadecimal part of a SHA-256 digest.
func digestHex(digest string) (string, error) {
	hex, is := strings.CutPrefix(digest, digestPrefix)
	if !is || len(hex) != 64 || !isHex(hex) {
		return "", fmt.Errorf("%q is not a digest: sha256: and 64 hexadecimal digits in lower case", shorten(digest))
	}
	return hex, nil
}

func isHex(s string) bool {
	return strings.Trim(s, "0123456789abcdef") == ""
}

// shorten bounds the length of untrusted text in messages.
func shorten(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
