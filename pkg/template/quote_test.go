package template

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// awkward are the strings that break naive quoting.
var awkward = []string{
	"", "plain", `"`, `'`, "`", `\`, `\\`, `\n`, "\n", "\r\n", "\t", `'"'"`, `"""`, `'''`, "a\x00b", "\x00" + "1", "\x01\x1f\x7f", "é", "漢字",
	"😀", "\u2028\u2029",
	"\u0085", "\ufeff", "\u202e", "${x}", "$(id)", "`id`", "{{.x}}", "{}", "%s%d", `A`, `\u0022`, `\\u0022+`, "\\", "line\\\nline", "--", "/*",
	"*/", "//", "#", "</script>",
	"\ud7ff\ue000\uffff", "\U0010ffff", "trailing\\", "\r", "\v\f\b\a\x1b[31m", "'; DROP TABLE x; --", "!!", "~", "*", "\\x41", "\\101", "\\0",
}

// literals quotes many strings at once, those that a language can express.
func literals(t interface{ Fatalf(string, ...any) }, language string, in []string) (quoted, kept []string) {
	for _, s := range in {
		q, err := quote(language, s)
		if err != nil {
			continue
		}
		quoted, kept = append(quoted, q), append(kept, s)
	}
	if len(kept) == 0 {
		t.Fatalf("%s can express nothing at all", language)
	}
	return quoted, kept
}

// interpreters print the hexadecimal bytes of each literal on a line: UTF-8, or UTF-16 where strings are that.
var interpreters = map[string]struct {
	program string
	utf16   bool
	source  func(quoted []string) (file, text string)
	argv    func(file string) []string
}{
	"python": {"python3", false, func(q []string) (string, string) {
		return "q.py", "for s in [\n" + strings.Join(q, ",\n") + "]:\n  print(s.encode('utf-8','surrogatepass').hex())\n"
	}, func(f string) []string { return []string{"python3", f} }},
	"javascript": {"node", true, func(q []string) (string, string) {
		return "q.js", "for (const s of [\n" + strings.Join(q, ",\n") +
			"]) console.log(Array.from({length: s.length}, (_, i) => s.charCodeAt(i).toString(16).padStart(4, '0')).join(''))\n"
	}, func(f string) []string { return []string{"node", f} }},
	"shell": {"bash", false, func(q []string) (string, string) {
		return "q.sh", "printf '%s\\0' " + strings.Join(q, "\nprintf '%s\\0' ") + "\n"
	}, func(f string) []string { return []string{"bash", f} }},
	"sql": {"sqlite3", false, func(q []string) (string, string) {
		return "q.sql", "SELECT lower(hex(CAST(" + strings.Join(q, " AS BLOB)));\nSELECT lower(hex(CAST(") + " AS BLOB)));\n"
	}, func(f string) []string { return []string{"sqlite3", "-init", "/dev/null", ":memory:", ".read " + f} }},
}

func roundTrip(t interface {
	Fatalf(string, ...any)
	Helper()
}, dir, language string, in []string) {
	t.Helper()
	i := interpreters[language]
	quoted, kept := literals(t, language, in)
	name, text := i.source(quoted)
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatalf("%v", err)
	}
	argv := i.argv(name)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = dir
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s\n%s", language, err, errs.String(), text)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if language == "shell" { // it has no NUL in its strings, and no quick way to hexadecimal
		lines = strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		for n := range lines {
			lines[n] = hexOf(lines[n], false)
		}
	}
	if len(lines) != len(kept) {
		t.Fatalf("%s: %d lines for %d strings", language, len(lines), len(kept))
	}
	for n, s := range kept {
		if want := hexOf(s, i.utf16); lines[n] != want {
			t.Fatalf("%s: %q was written %s and read %s, not %s", language, s, quoted[n], lines[n], want)
		}
	}
}

func hexOf(s string, wide bool) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := decodeWTF8(s[i:])
		n = max(n, 1)
		if wide {
			units := []uint16{uint16(r)}
			if r > 0xffff {
				units = utf16.Encode([]rune{r})
			}
			for _, u := range units {
				b.WriteString(strings.Repeat("0", 4-len(strconv.FormatUint(uint64(u), 16))) + strconv.FormatUint(uint64(u), 16))
			}
		} else {
			for _, c := range []byte(s[i : i+n]) {
				b.WriteString(string("0123456789abcdef"[c>>4]) + string("0123456789abcdef"[c&15]))
			}
		}
		i += n
	}
	return b.String()
}

// TestQuoteRoundTrips: what real interpreters read is what was quoted, for awkward and for random
// strings, any bytes and lone surrogates among them.
func TestQuoteRoundTrips(t *testing.T) {
	testenv.NeedSystem(t)
	for language, i := range interpreters {
		t.Run(language, func(t *testing.T) {
			if _, err := exec.LookPath(i.program); err != nil {
				t.Skipf("%s is not installed", i.program)
			}
			dir := t.TempDir()
			roundTrip(t, dir, language, append([]string{"\xed\xa0\x80", "a\xed\xbf\xbfb", "\xff\xfe", "a\xc3"}, awkward...))
			rapid.Check(t, func(r *rapid.T) {
				one := rapid.OneOf(rapid.String(), rapid.StringOf(rapid.SampledFrom([]rune("\"'\\`$\n\r\x00u0022{}é😀"))),
					rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
				roundTrip(r, dir, language, append(rapid.SliceOfN(one, 20, 60).Draw(r, "in"), "never empty"))
			})
		})
	}
}

func TestQuoteGo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOf(rapid.Byte()).Draw(t, "in"))
		q, err := quote("go", in)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := strconv.Unquote(q); err != nil || back != in {
			t.Fatalf("%q became %s and then %q (%v)", in, q, back, err)
		}
	})
}

// TestQuoteCompiled does it once for all awkward strings: compilers are slow.
func TestQuoteCompiled(t *testing.T) {
	for language, build := range map[string]struct {
		file, before, between, after string
		commands                     [][]string
	}{
		"rust": {"q.rs", "fn main() { for s in [", ",\n",
			"] { println!(\"{}\", s.bytes().map(|b| format!(\"{:02x}\", b)).collect::<String>()); } }\n",
			[][]string{{"rustc", "-o", "q", "q.rs"}, {"./q"}}},
		"java": {"Q.java", "class Q { public static void main(String[] a) { for (String s : new String[] {", ",\n",
			"}) { var b = new StringBuilder(); for (char c : s.toCharArray()) b.append(String.format(\"%04x\", (int) c)); " +
				"System.out.println(b); } } }\n",
			[][]string{{"javac", "-encoding", "ASCII", "Q.java"}, {"java", "-cp", ".", "Q"}}},
	} {
		t.Run(language, func(t *testing.T) {
			testenv.NeedSystem(t)
			if _, err := exec.LookPath(build.commands[0][0]); err != nil {
				t.Skipf("%s is not installed", build.commands[0][0])
			}
			quoted, kept := literals(t, language, append([]string{"\xed\xa0\x80", "\xff"}, awkward...))
			dir := t.TempDir()
			text := build.before + strings.Join(quoted, build.between) + build.after
			if err := os.WriteFile(filepath.Join(dir, build.file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			var out []byte
			for _, argv := range build.commands {
				cmd := exec.Command(argv[0], argv[1:]...)
				cmd.Dir = dir
				var err error
				if out, err = cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %v\n%s", argv, err, out)
				}
			}
			lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
			for i, s := range kept {
				if want := hexOf(s, language == "java"); lines[i] != want {
					t.Errorf("%q was written %s and read %s, not %s", s, quoted[i], lines[i], want)
				}
			}
		})
	}
}

// TestQuoteRefuses: what a language can not express is refused, and nothing else is.
func TestQuoteRefuses(t *testing.T) {
	const lone, raw, nul = "\xed\xa0\x80", "\xff", "\x00"
	for language, refused := range map[string][]string{
		"go": nil, "python": {raw}, "javascript": {raw}, "typescript": {raw}, "rust": {raw, lone}, "java": {raw, strings.Repeat("x", 65536)},
		"shell": {nul}, "sql": nil, "cobol": {""},
	} {
		for _, s := range []string{lone, raw, nul, strings.Repeat("x", 65536), ""} {
			_, err := quote(language, s)
			want := slices.Contains(refused, s) || language == "cobol"
			if (err != nil) != want {
				t.Errorf("%s: %.10q: %v, refused should be %v", language, s, err, want)
			}
		}
	}
	for _, s := range awkward {
		for _, language := range []string{"python", "javascript", "rust", "java", "sql", "go"} {
			if _, err := quote(language, s); err != nil {
				t.Errorf("%s: %q: %v", language, s, err)
			}
		}
	}
}

// TestQuoteJavaIsASCII: older compilers read the file in the encoding of the place.
func TestQuoteJavaIsASCII(t *testing.T) {
	for _, s := range awkward {
		q, err := quote("java", s)
		if err != nil || !isASCII(q) {
			t.Errorf("%q: %s, %v", s, q, err)
		}
	}
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 || s[i] < ' ' {
			return false
		}
	}
	return true
}
