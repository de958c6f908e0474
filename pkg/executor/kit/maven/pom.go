package maven

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
)

// pom is the part of a POM from which dependencies are resolved.
type pom struct {
	XMLName      xml.Name     `xml:"project"`
	Parent       *reference   `xml:"parent"`
	Packaging    string       `xml:"packaging"`
	Properties   properties   `xml:"properties"`
	Managed      []dependency `xml:"dependencyManagement>dependencies>dependency"`
	Dependencies []dependency `xml:"dependencies>dependency"`
	Relocation   *reference   `xml:"distributionManagement>relocation"`
}

// reference names another artifact; in an exclusion, a part that is * stands for all.
type reference struct {
	Group    string `xml:"groupId"`
	Artifact string `xml:"artifactId"`
	Version  string `xml:"version"`
}

// dependency is an artifact that another one needs, or manages for others.
type dependency struct {
	reference
	Type       string      `xml:"type"`
	Classifier string      `xml:"classifier"`
	Scope      string      `xml:"scope"`
	Optional   string      `xml:"optional"`
	Exclusions []reference `xml:"exclusions>exclusion"`
}

// properties are the properties of a POM: elements with any names.
type properties map[string]string

// UnmarshalXML implements xml.Unmarshaler.
func (p *properties) UnmarshalXML(d *xml.Decoder, start xml.StartElement) error {
	var all struct {
		Each []struct {
			XMLName xml.Name
			Value   string `xml:",chardata"`
		} `xml:",any"`
	}
	if err := d.DecodeElement(&all, &start); err != nil {
		return err
	}
	own := properties{}
	maps.Copy(own, *p)
	for _, e := range all.Each {
		own[e.XMLName.Local] = strings.TrimSpace(e.Value)
	}
	*p = own
	return nil
}

// maxNesting bounds how deep elements of a POM may stand in each other.
const maxNesting = 64

// elements reads the tokens of a POM, and refuses what no POM needs: a DTD, with its entities, and deep nesting.
type elements struct {
	from  *xml.Decoder
	depth int
}

// Token implements xml.TokenReader.
func (e *elements) Token() (xml.Token, error) {
	t, err := e.from.RawToken()
	switch t.(type) {
	case xml.Directive:
		return nil, errors.New("it has a document type, which POMs must not have")
	case xml.StartElement:
		if e.depth++; e.depth > maxNesting {
			return nil, fmt.Errorf("its elements are nested deeper than %d", maxNesting)
		}
	case xml.EndElement:
		e.depth--
	}
	return t, err
}

// parsePOM reads a POM. Entities other than XML's own are errors.
func parsePOM(text []byte) (*pom, error) {
	d := xml.NewDecoder(bytes.NewReader(text))
	d.CharsetReader = readCharset
	p := new(pom)
	if err := xml.NewTokenDecoder(&elements{from: d}).Decode(p); err != nil {
		return nil, fmt.Errorf("it is no POM that can be read: %w", err)
	}
	p.trim()
	return p, nil
}

// readCharset converts the encodings of old POMs to UTF-8.
func readCharset(charset string, r io.Reader) (io.Reader, error) {
	switch strings.ToLower(charset) {
	case "utf-8", "utf8", "us-ascii", "ascii":
		return r, nil
	case "iso-8859-1", "iso-8859-15", "latin1", "windows-1252", "cp1252":
		// Names of artifacts are ASCII, so that the few differences between these do not matter.
		text, err := io.ReadAll(r)
		var out strings.Builder
		for _, b := range text {
			out.WriteRune(rune(b))
		}
		return strings.NewReader(out.String()), err
	}
	return nil, fmt.Errorf("the encoding %.40q is not supported", charset)
}

// trim removes the space around all texts.
func (p *pom) trim() {
	p.Packaging = strings.TrimSpace(p.Packaging)
	for _, r := range []*reference{p.Parent, p.Relocation} {
		if r != nil {
			r.trim()
		}
	}
	for _, list := range [][]dependency{p.Managed, p.Dependencies} {
		for i := range list {
			list[i].replace(strings.TrimSpace)
		}
	}
}

func (r *reference) trim() { r.replace(strings.TrimSpace) }

// replace replaces each text.
func (r *reference) replace(by func(string) string) {
	for _, s := range []*string{&r.Group, &r.Artifact, &r.Version} {
		*s = by(*s)
	}
}

// replace replaces each text. The list of exclusions becomes another.
func (d *dependency) replace(by func(string) string) {
	d.reference.replace(by)
	for _, s := range []*string{&d.Type, &d.Classifier, &d.Scope, &d.Optional} {
		*s = by(*s)
	}
	var all []reference
	for _, e := range d.Exclusions {
		e.replace(by)
		all = append(all, e)
	}
	d.Exclusions = all
}
