package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/yamlite"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Config is the configuration of one registry.
type Config struct {
	Index        string   `json:"index"`         // URL
	Hosts        []string `json:"hosts"`         // further HOST[:PORT] that the index leads to
	CA           string   `json:"ca"`            // file of certificates, in place of the system's
	User         string   `json:"user"`          // of the index
	PasswordFile string   `json:"password_file"` // its content is the password
	TokenFile    string   `json:"token_file"`    // its content is a bearer token
	Checksums    string   `json:"checksums"`     // go: URL of the checksum database, or off

	named bool // by the configuration, and not by the table
}

// indexes are the indexes of the public registries. Their further hosts are those of package network's table.
var indexes = map[string]string{
	"npm":    "https://registry.npmjs.org/",
	"pypi":   "https://pypi.org/simple/",
	"go":     "https://proxy.golang.org/",
	"crates": "https://index.crates.io/",
	"maven":  "https://repo.maven.apache.org/maven2/",
}

// Names are the names of the registries that installations can use.
func Names() []string { return slices.Sorted(maps.Keys(indexes)) }

// CheckName refuses a name that no registry has.
func CheckName(name string) error {
	if _, known := indexes[name]; !known {
		return fmt.Errorf("%q is no registry; use one of %s", name, strings.Join(Names(), ", "))
	}
	return nil
}

// Load reads a configuration; a missing file configures nothing.
//
//	registries:
//	  pypi:
//	    index: https://pypi.example.com/simple/
//	    hosts: [files.example.com]
//	    ca: /etc/ssl/example.pem
//	    user: reader
//	    password_file: /etc/sandbox-run/pypi-password
func Load(file string) (map[string]Config, error) {
	all := map[string]Config{}
	for name, index := range indexes {
		c := Config{Index: index}
		for _, rule := range network.RegistryRules(name) {
			host, _ := strings.CutSuffix(rule, ":443")
			c.Hosts = append(c.Hosts, host)
		}
		if name == "go" {
			c.Checksums = "https://sum.golang.org"
		}
		all[name] = c
	}
	if file == "" {
		return all, nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err == nil {
		err = parse(text, filepath.Dir(file), all)
	}
	if err != nil {
		return nil, sandbox.Invalid("registries", "%s: %w", file, err)
	}
	return all, nil
}

func parse(text []byte, dir string, all map[string]Config) error {
	doc, err := yamlite.Decode(text)
	if err != nil {
		return err
	}
	encoded, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(encoded))
	d.DisallowUnknownFields()
	var read struct {
		Registries map[string]Config `json:"registries"`
	}
	if err := d.Decode(&read); err != nil {
		return err
	}
	for name, c := range read.Registries {
		if err := CheckName(name); err != nil {
			return err
		}
		if err := c.complete(dir); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all[name] = c
	}
	return nil
}

// complete checks a configuration. Names of files are relative to its directory.
func (c *Config) complete(dir string) error {
	u, err := parseURL(c.Index)
	if err != nil {
		return fmt.Errorf("index: %w", err)
	}
	if !strings.HasSuffix(u.Path, "/") {
		u.Path += "/"
	}
	c.Index, c.named = u.String(), true
	for _, h := range c.Hosts {
		if u, err := parseURL("https://" + h + "/"); err != nil || u.Host != h {
			return fmt.Errorf("hosts: %q is not HOST or HOST:PORT", h)
		}
	}
	if c.Checksums != "" && c.Checksums != "off" {
		if _, err := parseURL(c.Checksums); err != nil {
			return fmt.Errorf("checksums: %w", err)
		}
	}
	if (c.User == "") != (c.PasswordFile == "") {
		return errors.New("user and password_file come together")
	}
	if c.User != "" && c.TokenFile != "" {
		return errors.New("give either user and password_file, or token_file")
	}
	for _, f := range []*string{&c.CA, &c.PasswordFile, &c.TokenFile} {
		if *f != "" && !filepath.IsAbs(*f) {
			*f = filepath.Join(dir, *f)
		}
	}
	return nil
}

func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%q is not a URL", text)
	case u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return nil, fmt.Errorf("%q is not a URL; write it like https://registry.example.com/", text)
	case strings.Contains(u.Host, "["):
		return nil, fmt.Errorf("%q has a literal IPv6 address; use a name", text)
	case u.User != nil:
		return nil, errors.New("it contains a user; use user and password_file")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%q has a query or a fragment", text)
	}
	return u, nil
}

// hosts are the hosts to which the proxy forwards, as URLs have them. Named reports whether the configuration names the host: then its addresses
// may be private.
func (c *Config) hosts() map[string]bool {
	all := map[string]bool{}
	for _, h := range c.Hosts {
		all[h] = c.named
	}
	for _, text := range []string{c.Index, c.Checksums} {
		if u, err := url.Parse(text); err == nil && u.Host != "" {
			all[u.Host] = c.named
		}
	}
	return all
}

// authorization returns the header for the host of the index; "" without credentials.
func (c *Config) authorization() (string, error) {
	file := c.PasswordFile
	if c.TokenFile != "" {
		file = c.TokenFile
	}
	if file == "" {
		return "", nil
	}
	secret, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	text := strings.TrimRight(string(secret), "\r\n")
	if text == "" || strings.ContainsAny(text, "\r\n\x00") {
		return "", fmt.Errorf("%s is not one line of text", file)
	}
	if c.TokenFile != "" {
		return "Bearer " + text, nil
	}
	return basic(c.User, text), nil
}

// allowed reports whether the proxy may dial an address.
func allowed(a netip.Addr, named bool) bool { return named || !network.IsSpecial(a, false) }
