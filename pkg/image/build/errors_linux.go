package build

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"syscall"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// reasons maps output of mmdebstrap, apt and dpkg to a kind of error and a hint. The first match counts.
var reasons = []struct {
	said *regexp.Regexp
	kind error
	hint string // %s is the definition's name
}{
	{regexp.MustCompile(`(?i)no space left on device|not enough free space|disk quota exceeded`), syscall.ENOSPC,
		"sandbox-run image prune; a build needs about three times the image's size in %[2]s"},
	{regexp.MustCompile(`(?m)^(unshare: .*|newuidmap: .*|newgidmap: .*)$`), ErrNamespaces,
		"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER, or build as root"},
	{regexp.MustCompile(`(?i)temporary failure resolving|could not resolve|could not connect|cannot initiate the connection|` +
		`connection (?:refused|timed out|failed)|network is unreachable|unable to connect|no route to host|failed to fetch`),
		ErrNetwork, "check the network and http_proxy; or --mirror URL for another archive"},
	{regexp.MustCompile(`(?m)does not have a Release file|Release file for \S+ is (?:expired|not valid yet).*`), ErrNetwork,
		"--suite NAME or --mirror URL that has it"},
	{regexp.MustCompile(`(?m)NO_PUBKEY \S+|is not signed|The following signatures (?:couldn't be verified|were invalid).*`), ErrNetwork,
		"apt-get install debian-archive-keyring"},
	{regexp.MustCompile(`(?m)Unable to locate package \S+|Package '\S+' has no installation candidate|Couldn't find any package by .*|` +
		`has unmet dependencies|held broken packages`),
		ErrPackage, "apt-get update; or --suite NAME of a Debian release that has them"},
	{regexp.MustCompile(`(?m)^dpkg: error processing (?:package|archive) .*$`), ErrPackage,
		"the same with --verbose, for what the package says"},
}

// explain returns err with the reason from the programs' output and a hint.
func (d *Definition) explain(ctx context.Context, err error, said *tail, o Options) error {
	var known *sandbox.Error
	if errors.As(err, &known) {
		return err
	}
	e := &sandbox.Error{Op: "image build " + d.Name, Err: err}
	dir, _ := directory(o.Dir)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		e.Err = fmt.Errorf("not done after %v: %w", o.Timeout, context.DeadlineExceeded)
		return e
	case ctx.Err() != nil:
		e.Err = ctx.Err()
		return e
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		e.Hint = fmt.Sprintf(reasons[0].hint, d.Name, dir)
		return e
	}
	var f *failure
	if !errors.As(err, &f) {
		return e
	}
	for _, r := range reasons {
		if match := r.said.Find(said.text); match != nil {
			e.Err = fmt.Errorf("%w: %s", r.kind, lineWith(said.text, match))
			e.Hint = r.hint
			if strings.Contains(r.hint, "%[2]s") {
				e.Hint = fmt.Sprintf(r.hint, d.Name, dir)
			}
			return e
		}
	}
	e.Err = fmt.Errorf("mmdebstrap failed (%w): %s", f.err, lastLine(said.text))
	e.Hint = "the same with --verbose, for all that it says"
	return e
}

// lineWith returns the line of text that contains part, shortened for a message.
func lineWith(text, part []byte) string {
	for line := range strings.SplitSeq(string(text), "\n") {
		if strings.Contains(line, string(part)) {
			return shorten(line)
		}
	}
	return shorten(string(part))
}

// lastLine returns the last error that mmdebstrap or apt printed, or the last line. mmdebstrap's messages about its own end are skipped.
func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		line := strings.TrimSpace(lines[i])
		if strings.HasPrefix(line, "E: ") && !strings.Contains(line, "mmdebstrap failed to run") && !strings.HasPrefix(line, "E: rm failed") {
			return shorten(line)
		}
	}
	return shorten(lines[len(lines)-1])
}

func shorten(line string) string {
	line = strings.TrimSpace(line)
	if runes := []rune(line); len(runes) > 300 {
		return string(runes[:300]) + "…"
	}
	return line
}
