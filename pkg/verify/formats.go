package verify

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// The elements of SARIF 2.1.0, the format of results of static analysis.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool    sarifTool     `json:"tool"`
		Results []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name  string      `json:"name"`
		Rules []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID string `json:"id"`
	}
	sarifResult struct {
		Rule      string          `json:"ruleId"`
		Level     string          `json:"level"`
		Message   sarifMessage    `json:"message"`
		Locations []sarifLocation `json:"locations,omitempty"`
	}
	sarifMessage struct {
		Text string `json:"text"`
	}
	sarifLocation struct {
		Physical sarifPhysical `json:"physicalLocation"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   *sarifRegion  `json:"region,omitempty"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		Start int `json:"startLine"`
	}
)

// WriteSARIF writes the checks that have failed in the form of SARIF 2.1.0. The rule of a check is its suite.
func (r *Report) WriteSARIF(w io.Writer) error {
	run := sarifRun{Tool: sarifTool{sarifDriver{"sandbox-run verify", []sarifRule{}}}, Results: []sarifResult{}}
	rules := map[string]bool{}
	for _, c := range r.Checks {
		if !c.Status.Failed() {
			continue
		}
		if !rules[c.Suite] {
			rules[c.Suite] = true
			run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{c.Suite})
		}
		result := sarifResult{Rule: c.Suite, Level: "error", Message: sarifMessage{failureText(c)}}
		if c.File != "" {
			at := sarifPhysical{Artifact: sarifArtifact{sarifURI(c.File)}}
			if c.Line > 0 {
				at.Region = &sarifRegion{c.Line}
			}
			result.Locations = []sarifLocation{{at}}
		}
		run.Results = append(run.Results, result)
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(sarifLog{"https://json.schemastore.org/sarif-2.1.0.json", "2.1.0", []sarifRun{run}})
}

// sarifURI is a path as a relative URI.
func sarifURI(p string) string {
	var b strings.Builder
	for i := range len(p) {
		c := p[i]
		if c > ' ' && c < 0x7f && !strings.ContainsRune(`"%<>\^{|}?#:`+"`", rune(c)) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func failureText(c *Check) string {
	text := c.Name + ": " + string(c.Status)
	if c.Failure != nil && c.Failure.Message != "" {
		text = c.Name + ": " + c.Failure.Message
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// The characters that GitHub's workflow commands encode, in the text of a message and in properties. Line ends are among them: a message
// can not begin another command.
var (
	githubText     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	githubProperty = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// WriteGitHub writes the checks that have failed as workflow commands of GitHub, which shows them beside the lines of a change.
func (r *Report) WriteGitHub(w io.Writer) error {
	out := bufio.NewWriter(w)
	for _, c := range r.Checks {
		if !c.Status.Failed() {
			continue
		}
		properties := "title=" + githubProperty.Replace(strings.TrimSpace(c.Suite+" "+string(c.Status)))
		if c.File != "" {
			properties += ",file=" + githubProperty.Replace(c.File)
		}
		if c.Line > 0 {
			properties += fmt.Sprintf(",line=%d", c.Line)
		}
		fmt.Fprintf(out, "::error %s::%s\n", properties, githubText.Replace(failureText(c))) // Flush returns the error
	}
	return out.Flush()
}
