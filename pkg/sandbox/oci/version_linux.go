package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// version has the numbers of a version, the most significant first.
type version []int

func (v version) String() string {
	words := make([]string, len(v))
	for i, n := range v {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ".")
}

// parseVersion finds the version in the output of a runtime's version command: in its first line, from the first digit
// on. The version of a release that is named by its day (release-20221212.0, 0.0~20221219.0) is that day.
func parseVersion(text string) (version, bool) {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	digit := func(r rune) bool { return r >= '0' && r <= '9' }
	for field := range strings.FieldsFuncSeq(line, func(r rune) bool { return !digit(r) }) {
		if len(field) == len("20060102") {
			n, err := strconv.Atoi(field)
			return version{n}, err == nil
		}
	}
	i := strings.IndexFunc(line, digit)
	if i < 0 {
		return nil, false
	}
	var v version
	for part := range strings.SplitSeq(line[i:], ".") {
		end := strings.IndexFunc(part, func(r rune) bool { return !digit(r) })
		if end < 0 {
			end = len(part)
		}
		n, err := strconv.Atoi(part[:end])
		if err != nil {
			break
		}
		if v = append(v, n); end < len(part) {
			break
		}
	}
	return v, len(v) > 0
}

// check reports whether a runtime is new enough. The query takes as long as a small sandbox, so the answer is kept until
// the file changes.
func (f *found) check(ctx context.Context, cacheDir string) {
	if f.reason != "" || f.version != "" {
		return
	}
	text, err := f.queryVersionOnce(ctx, cacheDir)
	if err != nil {
		f.reason, f.remedy = fmt.Sprintf("%s does not say its version: %v", f.path, err), f.get
		return
	}
	v, ok := parseVersion(text)
	if !ok {
		f.reason, f.remedy = fmt.Sprintf("%s says of its version %.80q, which is none", f.path, text), f.get
		return
	}
	if f.version = v.String(); slices.Compare(v, f.oldest) < 0 {
		f.reason, f.remedy = fmt.Sprintf("%s is %s %s; %s is needed", f.path, f.name, v, f.oldest), "a newer one: "+f.get
	}
}

// versionAnswer is the kept answer of a runtime.
type versionAnswer struct {
	Path, Stamp, Text string
}

// stamp identifies a file and its content by its metadata.
func stamp(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x.%x.%x.%x.%x", st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()), nil
}

func (f *found) queryVersionOnce(ctx context.Context, cacheDir string) (string, error) {
	now, err := stamp(f.path)
	if err != nil {
		return "", err
	}
	file := filepath.Join(cacheDir, "runtime-"+f.name+".json")
	if a, ok := readAnswer(file); ok && a.Path == f.path && a.Stamp == now {
		return a.Text, nil
	}
	text, err := queryVersion(ctx, f.path)
	if err != nil {
		return "", err
	}
	if b, err := json.Marshal(versionAnswer{f.path, now, text}); err == nil {
		writeAnswer(file, b) // on an error the runtime is queried again
	}
	return text, nil
}

// readAnswer trusts only a file that no other user could have written.
func readAnswer(file string) (a versionAnswer, ok bool) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return a, false
	}
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 ||
		st.Size > maxPrinted {
		return a, false
	}
	return a, json.NewDecoder(f).Decode(&a) == nil
}

func writeAnswer(file string, b []byte) {
	f, err := os.CreateTemp(filepath.Dir(file), "runtime-*.tmp")
	if err != nil {
		return
	}
	_, err = f.Write(b)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
}

// versionTimeout is how long a runtime may take to print its version; maxPrinted is how much it may print.
const (
	versionTimeout = 10 * time.Second
	maxPrinted     = 8 << 10
)

func queryVersion(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = environ()
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", err
	}
	return string(out[:min(len(out), maxPrinted)]), nil
}

// environ is the runtime's environment: it has nothing of the supervisor's.
func environ() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "GOTRACEBACK=single"}
}
