package remote

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

var platformPart = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)

// parsePlatform reads OS/ARCH[/VARIANT].
func parsePlatform(text string) (v1.Platform, error) {
	parts := strings.Split(strings.ToLower(text), "/")
	if len(parts) < 2 || len(parts) > 3 || slices.ContainsFunc(parts, func(s string) bool { return !platformPart.MatchString(s) }) {
		return v1.Platform{}, fmt.Errorf("platform %q is not OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT; an example: linux/arm64", text)
	}
	p := v1.Platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	switch p.Architecture { // names of uname
	case "x86_64", "x86-64":
		p.Architecture = "amd64"
	case "aarch64":
		p.Architecture = "arm64"
	}
	return p, nil
}

// platformError lists the platforms that the index has instead.
type platformError struct {
	want v1.Platform
	have []v1.Platform
}

func (e *platformError) Error() string {
	var names []string
	for _, p := range e.have {
		if name := plain(p.String()); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	switch {
	case len(names) == 0:
		return fmt.Sprintf("no image for %s: the index is empty", e.want)
	case len(names) > 30:
		names = append(names[:30], "…")
	}
	return fmt.Sprintf("no image for %s, only for %s; choose one by --platform", e.want, strings.Join(names, ", "))
}

func (e *platformError) Is(target error) bool { return target == ErrPlatform }

// chooseManifest returns the entry of an index that fits a platform best.
func chooseManifest(index []byte, want v1.Platform) (v1.Descriptor, error) {
	var list v1.IndexManifest
	if err := json.Unmarshal(index, &list); err != nil {
		return v1.Descriptor{}, fmt.Errorf("%w: the index: %s", ErrInvalid, plain(err.Error()))
	}
	missing := &platformError{want: want}
	best, bestFit := -1, 0
	for i, d := range list.Manifests {
		if !known(d.MediaType) || d.Annotations["vnd.docker.reference.type"] != "" {
			continue // a signature or an attestation
		}
		has := v1.Platform{}
		if d.Platform != nil {
			has = *d.Platform
		}
		if has.OS == "unknown" {
			continue
		}
		if has.OS != "" {
			missing.have = append(missing.have, has)
		}
		if f := fit(has, want); f > bestFit {
			best, bestFit = i, f
		}
	}
	if best < 0 {
		return v1.Descriptor{}, missing
	}
	chosen := list.Manifests[best]
	if err := checkDescriptor("the image for "+want.String(), chosen, maxManifest); err != nil {
		return v1.Descriptor{}, err
	}
	return chosen, nil
}

// fit returns how well an image suits a platform; 0 is not at all.
func fit(has, want v1.Platform) int {
	if has.OS == "" && has.Architecture == "" {
		return 1 // some tools write indexes without platforms; checkPlatform reads the configuration
	}
	if has.OS != want.OS || has.Architecture != want.Architecture {
		return 0
	}
	hasVariant, wantVariant := variant(has), variant(want)
	switch {
	case hasVariant == wantVariant:
		return 100
	case wantVariant == "" && want.Variant == "":
		// The request has no variant: the lowest one runs on every machine.
		return 50 - level(hasVariant)
	case want.Architecture == "arm" && level(hasVariant) < level(wantVariant):
		return 10 + level(hasVariant) // a 32-bit ARM runs programs for lower variants
	}
	return 0
}

// level returns the number in a variant such as v7, 0 for no variant, and 10 for a variant of another form.
func level(variant string) int {
	if variant == "" {
		return 0
	}
	if len(variant) == 2 && variant[0] == 'v' && variant[1] >= '0' && variant[1] <= '9' {
		return int(variant[1] - '0')
	}
	return 10
}

// variant returns the variant of a platform; the default variant of its architecture is empty.
func variant(p v1.Platform) string {
	switch {
	case p.Architecture == "arm64" && p.Variant == "v8", p.Architecture == "amd64" && p.Variant == "v1":
		return ""
	}
	return p.Variant
}
