// Package coordinate parses the coordinates of Maven artifacts, and names their files.
//
// What. Parse accepts group:artifact:version and group:artifact:version:classifier, with a fixed version, and nothing that could lead to
// another place in a repository or in a file system. Path is the place in a repository, Files are the names of jars in one directory.
//
// Place in the flow. Apart from package maven, so that language Java can name the jars of a layer without linking an HTTP client.
//
// Lifecycle and concurrency. Pure functions.
//
// Limits. Only artifacts with jars have coordinates here; ranges and snapshots, which change, have none.
package coordinate

import (
	"errors"
	"fmt"
	"strings"
)

// Coordinate names an artifact in a repository.
type Coordinate struct{ Group, Artifact, Version, Classifier string }

// maxPart bounds each part of a coordinate.
const maxPart = 200

// Parse reads the text of a coordinate.
func Parse(text string) (Coordinate, error) {
	parts := strings.Split(text, ":")
	if len(parts) < 3 || len(parts) > 4 {
		return Coordinate{}, fmt.Errorf("%.100q is not group:artifact:version; write it like com.google.code.gson:gson:2.10.1", text)
	}
	c := Coordinate{Group: parts[0], Artifact: parts[1], Version: parts[2]}
	if len(parts) == 4 {
		if c.Classifier = parts[3]; c.Classifier == "" {
			return Coordinate{}, fmt.Errorf("%.100q has an empty classifier", text)
		}
	}
	if err := c.Check(); err != nil {
		return Coordinate{}, fmt.Errorf("%.100q %w", text, err)
	}
	return c, nil
}

// Check refuses parts that are no names, and versions that are not fixed. The error continues a sentence about the coordinate.
func (c Coordinate) Check() error {
	for _, p := range []struct{ kind, text string }{{"group", c.Group}, {"artifact", c.Artifact}, {"classifier", c.Classifier}} {
		if !isName(p.text) && (p.kind != "classifier" || p.text != "") {
			return fmt.Errorf("has the %s %.100q, which is no name of Maven's", p.kind, p.text)
		}
	}
	switch v := c.Version; {
	case v == "":
		return errors.New("has no version")
	case strings.ContainsAny(v, "[](),"):
		return fmt.Errorf("has the range %.100q for a version; name one version with --deps %s:%s:VERSION", v, c.Group, c.Artifact)
	case v == "LATEST" || v == "RELEASE" || strings.HasSuffix(v, "-SNAPSHOT"):
		return fmt.Errorf("has the version %.100q, which changes; name a released version with --deps %s:%s:VERSION", v, c.Group, c.Artifact)
	case strings.Contains(v, "${"):
		return fmt.Errorf("has the version %.100q, and no POM sets that property; name a version with --deps %s:%s:VERSION", v, c.Group,
			c.Artifact)
	case !isName(strings.ReplaceAll(v, "+", "_")):
		return fmt.Errorf("has the version %.100q, which is none of Maven's", v)
	}
	return nil
}

// isName reports whether a text can be a part of a coordinate. Each part becomes a file name, and groups become several.
func isName(s string) bool {
	return s != "" && len(s) <= maxPart && !strings.Contains(s, "..") && !strings.ContainsAny(s[:1], ".-") && !strings.HasSuffix(s, ".") &&
		!strings.ContainsFunc(s, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
		})
}

// String returns the text that Parse reads.
func (c Coordinate) String() string {
	s := c.Name() + ":" + c.Version
	if c.Classifier != "" {
		s += ":" + c.Classifier
	}
	return s
}

// Name returns the coordinate without version and classifier.
func (c Coordinate) Name() string { return c.Group + ":" + c.Artifact }

// Path returns the path of a file of the artifact in a repository: its jar, or its pom, which has no classifier.
func (c Coordinate) Path(extension string) string {
	file := c.Artifact + "-" + c.Version
	if c.Classifier != "" && extension != "pom" {
		file += "-" + c.Classifier
	}
	return strings.ReplaceAll(c.Group, ".", "/") + "/" + c.Artifact + "/" + c.Version + "/" + file + "." + extension
}

// Files returns file names for the jars of artifacts in one directory: artifact-version.jar, and the whole coordinate where several would
// have one name.
func Files(all []Coordinate) []string {
	names, count := make([]string, len(all)), map[string]int{}
	for i, c := range all {
		path := c.Path("jar")
		names[i] = path[strings.LastIndex(path, "/")+1:]
		count[names[i]]++
	}
	for i, c := range all {
		if count[names[i]] > 1 {
			names[i] = strings.ReplaceAll(c.String(), ":", "~") + ".jar" // no part of a coordinate has a ~
		}
	}
	return names
}
