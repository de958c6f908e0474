// Package sbom writes the packages of a layer as a software bill of materials.
//
// What. Write makes a CycloneDX 1.6 document: a component for each package, with its package URL and the digest of its archive.
//
// Place in the flow. Only sandbox-rund links it, for `deps sbom`.
//
// Lifecycle and concurrency. Write is a function of its arguments.
//
// Limits. Locks have no licences and no graph of dependencies, so the document has none. Equal layers have equal documents: it has no time
// and no serial number of its own.
package sbom

import (
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/url"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

// kinds are the types of package URLs.
var kinds = map[string]string{"python": "pypi", "javascript": "npm", "typescript": "npm", "go": "golang", "rust": "cargo", "java": "maven"}

// algorithms are CycloneDX's names of those in locks.
var algorithms = map[string]cdx.HashAlgorithm{
	"sha1": cdx.HashAlgoSHA1, "sha256": cdx.HashAlgoSHA256, "sha384": cdx.HashAlgoSHA384, "sha512": cdx.HashAlgoSHA512,
}

// Write writes the document of a layer.
func Write(w io.Writer, i *deps.Info) error {
	var components []cdx.Component
	for _, p := range i.Lock.Packages {
		c := cdx.Component{Type: cdx.ComponentTypeLibrary, Name: p.Name, Version: p.Version, PackageURL: packageURL(i.Language, p)}
		c.BOMRef = c.PackageURL
		if group, name, found := strings.Cut(p.Name, ":"); found {
			c.Group, c.Name = group, name
		}
		if algorithm, digest, _ := strings.Cut(p.Hash, ":"); algorithms[algorithm] != "" {
			c.Hashes = &[]cdx.Hash{{Algorithm: algorithms[algorithm], Value: digest}}
		} else if p.Hash != "" { // Go's digest of a module's files, in base64
			if raw, err := base64.StdEncoding.DecodeString(digest); err == nil {
				digest = hex.EncodeToString(raw)
			}
			c.Properties = &[]cdx.Property{{Name: "sandbox-run:" + algorithm, Value: digest}}
		}
		if p.URL != "" {
			c.ExternalReferences = &[]cdx.ExternalReference{{Type: cdx.ERTypeDistribution, URL: p.URL}}
		}
		components = append(components, c)
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &cdx.Component{
		Type: cdx.ComponentTypeContainer, BOMRef: i.ID, Name: "sandbox-run layer " + i.Short(), Version: i.ID,
	}}
	bom.Components = &components
	e := cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON)
	e.SetPretty(true)
	return e.EncodeVersion(bom, cdx.SpecVersion1_6)
}

// packageURL returns the package URL (purl) of a package.
func packageURL(l string, p language.Package) string {
	var parts []string
	for part := range strings.SplitSeq(strings.ReplaceAll(p.Name, ":", "/"), "/") {
		parts = append(parts, strings.ReplaceAll(url.PathEscape(part), "@", "%40"))
	}
	return "pkg:" + kinds[l] + "/" + strings.Join(parts, "/") + "@" + url.PathEscape(p.Version)
}
