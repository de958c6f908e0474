package build

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// sources are the Debian archives of a build and the settings that reach them.
type sources struct {
	suite string
	lines []string // of a sources.list
	conf  []string // the machine's settings of apt, such as proxies
}

const (
	debianArchive  = "http://deb.debian.org/debian"
	debianSecurity = "http://deb.debian.org/debian-security"
	debianKeys     = "/usr/share/keyrings/debian-archive-keyring.gpg"
	aptTimeout     = 30 * time.Second // of a command of apt that only prints
)

var suiteName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,40}$`)

// findSources returns the machine's own sources of Debian packages for the suite, or Debian's default ones. It leaves out other sources of
// the machine, so that an image has Debian's packages only.
func findSources(ctx context.Context, t *tools, o Options) (*sources, error) {
	if o.Suite != "" && !suiteName.MatchString(o.Suite) {
		return nil, sandbox.Invalid("suite", "%q is no name of a Debian release, like %s", o.Suite, DefaultSuite)
	}
	s := &sources{suite: o.Suite}
	id, codename := readRelease()
	if s.suite == "" && id == "debian" {
		s.suite = codename
	}
	s.suite = cmp.Or(s.suite, DefaultSuite)
	var repos []repo
	switch {
	case o.Mirror != "":
		u, err := url.Parse(o.Mirror)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.ContainsAny(o.Mirror, " \t\n[]") {
			return nil, sandbox.Invalid("mirror", "%q is no URL of a Debian archive, like %s", o.Mirror, debianArchive)
		}
		repos = []repo{{o.Mirror, s.suite}}
	default:
		text, err := readApt(ctx, t.aptGet, "indextargets", "--no-release-info", "Created-By: Packages")
		if err != nil {
			return nil, err
		}
		repos = debianRepos(parseTargets(text), s.suite)
	}
	if len(repos) == 0 {
		repos = []repo{{debianArchive, s.suite}, {debianArchive, s.suite + "-updates"}, {debianSecurity, s.suite + "-security"}}
		if s.suite == "sid" || s.suite == "unstable" {
			repos = repos[:1]
		}
	}
	signed := ""
	if _, err := os.Stat(debianKeys); err == nil {
		signed = "[signed-by=" + debianKeys + "] "
	}
	for _, r := range repos {
		s.lines = append(s.lines, "deb "+signed+r.uri+" "+r.suite+" main")
	}
	text, err := readApt(ctx, t.aptConfig, "dump")
	if err != nil {
		return nil, err
	}
	s.conf = ownSettings(text)
	return s, nil
}

// readRelease reads the distribution and its release from os-release.
func readRelease() (id, codename string) {
	text, _ := os.ReadFile("/etc/os-release")
	for line := range strings.SplitSeq(string(text), "\n") {
		key, value, _ := strings.Cut(line, "=")
		switch value = strings.Trim(value, `"'`); key {
		case "ID":
			id = value
		case "VERSION_CODENAME":
			codename = value
		}
	}
	return id, codename
}

// readApt returns the output of a command of apt that only prints.
func readApt(ctx context.Context, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, aptTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	cmd.WaitDelay = time.Second
	var errs bytes.Buffer
	cmd.Stderr = &errs
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", program, args[0], err, lastLine(errs.Bytes()))
	}
	return text, nil
}

// repo is a suite of an archive. A build uses its component main.
type repo struct{ uri, suite string }

// target is an index of packages in apt's sources.
type target struct{ uri, suite, component string }

// parseTargets parses the stanzas of `apt-get indextargets`.
func parseTargets(text []byte) []target {
	var all []target
	var t target
	flush := func() {
		if t.uri != "" && t.suite != "" && t.component != "" {
			all = append(all, t)
		}
		t = target{}
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if lines.Text() == "" {
			flush()
			continue
		}
		key, value, _ := strings.Cut(lines.Text(), ":")
		switch value = strings.TrimSpace(value); key {
		case "Repo-URI":
			t.uri = value
		case "Release":
			t.suite = value
		case "Component":
			t.component = value
		}
	}
	flush()
	return all
}

// debianRepos selects the suites of a Debian release by name: the release, its updates, its security updates. The preferences
// exclude an archive of another origin with the same names.
func debianRepos(targets []target, suite string) []repo {
	var repos []repo
	base := false
	for _, t := range targets {
		rest, ours := strings.CutPrefix(t.suite, suite)
		if !ours || t.component != "main" || !slices.Contains([]string{"", "-updates", "-security", "/updates"}, rest) ||
			strings.ContainsAny(t.uri, " \t[]") {
			continue
		}
		base = base || rest == ""
		if r := (repo{t.uri, t.suite}); !slices.Contains(repos, r) {
			repos = append(repos, r)
		}
	}
	if !base {
		return nil
	}
	return repos
}

// setting matches the lines of `apt-config dump` about proxies and the verification of archives.
var setting = regexp.MustCompile(`^Acquire::((https?|ftp)::Proxy(::[^ "]+)?|(https?::)?(Proxy-Auto-Detect|Verify-Peer|CaInfo)` +
	`|Check-Valid-Until) "[^"]+";$`)

// ownSettings returns the machine's settings of apt that a build needs to reach archives.
func ownSettings(dump []byte) []string {
	var all []string
	for line := range strings.SplitSeq(string(dump), "\n") {
		if setting.MatchString(line) {
			all = append(all, line)
		}
	}
	return all
}
