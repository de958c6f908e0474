package deps

import (
	"context"
	"net/netip"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

// ProxyName is the name of the registry's proxy in installing sandboxes.
const ProxyName = "registry.sandbox-run.internal"

// Access is how an installation reaches its registry.
type Access struct {
	Address   netip.AddrPort `json:"address"`             // of the proxy, on this machine
	Base      string         `json:"base"`                // URL in the sandbox: http://PROXYNAME/TOKEN
	Index     string         `json:"index"`               // URL in the sandbox
	Checksums string         `json:"checksums,omitempty"` // URL in the sandbox of Go's checksum database; "": none
}

// Registries serve package registries to installations.
type Registries interface {
	// Open serves a registry until the caller calls stop, which returns sentences about requests that were refused.
	Open(ctx context.Context, name string) (a *Access, stop func() (refused []string), err error)
}

// Fill replaces the placeholders of package language.
func (a *Access) Fill(text string) string {
	checksums := "off"
	if a.Checksums != "" {
		checksums = "sum.golang.org " + a.Checksums
	}
	return strings.NewReplacer(language.Registry, a.Base, language.Index, a.Index, language.Checksums, checksums).Replace(text)
}

// PortMark stands for the colon before a port in the proxy's paths.
const PortMark = "~"

// Restore replaces the proxy's addresses in a text by those of the registry.
func (a *Access) Restore(text string) string {
	for _, scheme := range []string{"https", "http"} {
		parts := strings.Split(text, a.Base+"/"+scheme+"/")
		for i := 1; i < len(parts); i++ {
			host, path, found := strings.Cut(parts[i], "/")
			if found && len(host) < maxHost {
				parts[i] = strings.Replace(host, PortMark, ":", 1) + "/" + path
			}
		}
		text = strings.Join(parts, scheme+"://")
	}
	return text
}

const maxHost = 260
