package serve

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// volatile are the parts of answers that differ from run to run.
var volatile = regexp.MustCompile(`[0-9a-f]{20,32}|\bID\b|\d+\.\d\d s`)

// TestMCPGuide replays the transcripts of the guide: each call of a block mcp, whose answer begins with the block text behind it.
func TestMCPGuide(t *testing.T) {
	page, err := os.ReadFile("../../docs/guide/agents.md")
	must(t, err)
	a, _ := streamAgent(t, "", nil)
	blocks := regexp.MustCompile("(?s)```(mcp|text)\n(.*?)\n```").FindAllStringSubmatch(string(page), -1)
	calls, compared, last := 0, 0, ""
	for _, b := range blocks {
		if b[1] == "text" {
			got, want := volatile.ReplaceAllString(last, "#"), volatile.ReplaceAllString(b[2], "#")
			if !strings.HasPrefix(strings.TrimSpace(got), want) {
				t.Errorf("the guide has\n%s\nand the tool says\n%s", b[2], last)
			}
			compared++
			continue
		}
		tool, text, _ := strings.Cut(b[2], " ")
		var in args
		must(t, json.Unmarshal([]byte(text), &in))
		last = a.call(tool, in).text
		calls++
	}
	if calls < 10 || compared < 9 {
		t.Errorf("%d calls, %d answers", calls, compared)
	}
}
