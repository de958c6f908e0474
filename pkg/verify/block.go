package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Block is a code block of a document.
type Block struct {
	Fence
	Language string
	Skip     bool
	Fail     string // "": it has to succeed; "any", an exit code or a verdict
	Stderr   bool   // the output is that of standard error
	Timeout  time.Duration
	Session  string  // name of its session; "": a sandbox of its own
	Stdin    string  // content of standard input
	Output   *Fence  // that follows; nil: none
	files    []*file // that come before it
}

// file is a file that a block of the document defines.
type file struct {
	path, text string
	line       int
}

// attributes are the words of an info string that have a meaning here. Other words belong to other tools.
var attributes = []string{"skip", "fail", "continue", "session", "stdin", "stderr", "file", "timeout", "output"}

// outputLanguage marks a block that has the output of the block before it.
const outputLanguage = "output"

// failAny is the value of fail without a value.
const failAny = "any"

// readInfo splits an info string into its language and its attributes. Words are separated by spaces or commas, and may be in braces:
// rust,fail; python timeout=5s; {python stdin="a b"}.
func readInfo(info string) (lang string, attrs map[string]string, err error) {
	attrs = map[string]string{}
	words, err := splitInfo(info)
	fail := func(format string, args ...any) {
		if err == nil {
			err = fmt.Errorf(format, args...)
		}
	}
	for i, word := range words {
		name, value, hasValue := strings.Cut(word, "=")
		known := slices.Contains(attributes, name)
		switch {
		case i == 0 && !hasValue && (!known || name == outputLanguage):
			lang = strings.ToLower(strings.TrimPrefix(word, "."))
		case known:
			_, twice := attrs[name]
			switch {
			case twice:
				fail("the attribute %s is there twice", name)
			case hasValue && value == "" || !hasValue && slices.Contains([]string{"session", "stdin", "file", "timeout"}, name):
				fail("the attribute %s has no value", name)
			case hasValue && slices.Contains([]string{"skip", "continue", "stderr", "output"}, name):
				fail("the attribute %s takes no value", name)
			default:
				attrs[name] = value
			}
		default: // a typing error would be a check less
			near := nearest.Word(name, attributes)
			if near != "" && nearest.Distance(name, near) <= len(name)/6+1 {
				fail("unknown attribute %.40q; is it %s?", name, near)
			}
		}
	}
	return lang, attrs, err
}

func splitInfo(info string) (words []string, err error) {
	info = strings.TrimSpace(info)
	if inner, ok := strings.CutPrefix(info, "{"); ok {
		info = strings.TrimSuffix(inner, "}")
	}
	word, inWord := "", false
	for info != "" {
		switch c := info[0]; {
		case c == '"' && strings.HasSuffix(word, "="):
			quoted, e := strconv.QuotedPrefix(info)
			if e != nil {
				return words, fmt.Errorf("a quotation mark is missing in %.40q", info)
			}
			value, e := strconv.Unquote(quoted)
			if e != nil {
				return words, e
			}
			word, info = word+value, info[len(quoted):]
			continue
		case c == ' ' || c == '\t' || c == ',' || c == '{' || c == '}':
			if inWord {
				words = append(words, word)
			}
			word, inWord = "", false
		default:
			word, inWord = word+string(c), true
		}
		info = info[1:]
	}
	if inWord {
		words = append(words, word)
	}
	return words, nil
}

// readBlocks returns the code blocks of a document. isLanguage decides which blocks are code: others are text.
func readBlocks(text string, isLanguage func(string) bool) ([]*Block, error) {
	fences, err := Scan(text)
	if err != nil {
		return nil, err
	}
	var all []*Block
	var last *Block // whose output may follow
	var files []*file
	for i := range fences {
		f := &fences[i]
		lang, attrs, err := readInfo(f.Info)
		_, isOutput := attrs["output"]
		if err != nil && (isLanguage(lang) || isOutput || lang == outputLanguage || strings.Contains(f.Info, "file=")) {
			return nil, &ScanError{f.Line, err.Error()}
		}
		switch path, isFile := attrs["file"]; {
		case lang == outputLanguage || isOutput:
			if last == nil {
				return nil, &ScanError{f.Line, "there is no code block to which this output belongs"}
			}
			last.Output = f
			last = nil
		case isFile:
			if err := language.CheckName("file", path); err != nil {
				return nil, &ScanError{f.Line, err.Error()}
			}
			files = append(slices.Clip(slices.DeleteFunc(slices.Clone(files), func(o *file) bool { return o.path == path })),
				&file{path, f.Text, f.Line})
		case isLanguage(lang):
			b := &Block{Fence: *f, Language: lang, files: files}
			if err := b.apply(attrs, all); err != nil {
				return nil, &ScanError{f.Line, err.Error()}
			}
			all = append(all, b)
			last = b
		default:
			last = nil
		}
	}
	return all, nil
}

// apply sets what the attributes say. before are the earlier blocks.
func (b *Block) apply(attrs map[string]string, before []*Block) error {
	for name, value := range attrs {
		switch name {
		case "skip":
			b.Skip = true
		case "fail":
			b.Fail = cmp.Or(value, failAny)
			if !isFailure(b.Fail) {
				return fmt.Errorf("fail=%.40s is neither an exit code nor a verdict of a failure", value)
			}
		case "stderr":
			b.Stderr = true
		case "timeout":
			var l sandbox.Limits
			if err := sandbox.FindLimit("timeout").Parse(&l, value); err != nil || l.Wall <= 0 {
				return fmt.Errorf("timeout=%.40s is no duration such as 5s", value)
			}
			b.Timeout = l.Wall
		case "session":
			b.Session = value
		case "stdin":
			i := slices.IndexFunc(b.files, func(f *file) bool { return f.path == value })
			if i < 0 {
				return fmt.Errorf("stdin=%.40s: no block before this one has file=%.40s", value, value)
			}
			b.Stdin = b.files[i].text
		}
	}
	if _, ok := attrs["continue"]; ok {
		if b.Session != "" {
			return fmt.Errorf("continue and session=%.40s: leave out one of them", b.Session)
		}
		i := len(before) - 1
		for i >= 0 && (before[i].Language != b.Language || before[i].Skip) {
			i--
		}
		if i < 0 {
			return fmt.Errorf("there is no block in %s to continue", b.Language)
		}
		if before[i].Session == "" {
			if before[i].Stdin != "" {
				return fmt.Errorf("the block of line %d has a standard input, and can not be continued", before[i].Line)
			}
			before[i].Session = fmt.Sprintf("line %d", before[i].Line)
		}
		b.Session = before[i].Session
	}
	if b.Session != "" && b.Stdin != "" {
		return fmt.Errorf("blocks of a session have no standard input; leave out stdin=")
	}
	return nil
}

// isFailure reports whether a value of fail names a failure.
func isFailure(value string) bool {
	if code, err := strconv.Atoi(value); err == nil {
		return code > 0 && code < 256
	}
	return value == failAny || value != string(sandbox.VerdictOK) && slices.Contains(sandbox.Verdicts(), sandbox.Verdict(value))
}
