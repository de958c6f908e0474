package maven

import (
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/coordinate"
)

// FuzzPOM: a POM may be anything, and what comes of it has bounds.
func FuzzPOM(f *testing.F) {
	f.Add([]byte("<project><properties><a>${b}</a><b>${a}</b></properties>" + needs("g:a:${a}",
		"g:b <type>pom</type><scope>import</scope>") + "</project>"))
	f.Add([]byte("<?xml version='1.0' encoding='ISO-8859-1'?><project><parent><groupId>\xe9</groupId></parent></project>"))
	f.Add([]byte("<!DOCTYPE x [<!ENTITY a 'b'>]><project>&a;</project>"))
	f.Add([]byte("<project><distributionManagement><relocation><version>2</version></relocation></distributionManagement></project>"))
	f.Add([]byte("<project><a:b xmlns:a='x'><![CDATA[y]]></a:b>" + strings.Repeat("<x>", 70)))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := parsePOM(text)
		if err != nil {
			return
		}
		c := coordinate.Coordinate{Group: "g", Artifact: "a", Version: "1"}
		m := &model{pom: p, properties: properties{}, managed: map[key]*dependency{}}
		for name, value := range p.Properties {
			m.properties[name] = value
		}
		m.setProject(c)
		for _, d := range append(p.Dependencies, p.Managed...) {
			before := len(d.Version)
			d.replace(m.expand)
			if len(d.Version) > before+maxExpanded {
				t.Errorf("%d bytes", len(d.Version))
			}
			m.complete(&d)
		}
	})
}
