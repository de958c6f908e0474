package diagnose

import (
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Diagnosis explains a failure. Its JSON names are stable.
type Diagnosis struct {
	Kind        Kind      `json:"kind"`
	Message     string    `json:"message"`                                // the error, in the words of the program or its compiler
	Frames      []Frame   `json:"frames,omitempty" nullable:"false"`      // the user's first, each group with the innermost first
	Location    *Location `json:"location,omitempty" nullable:"false"`    // in the user's code
	Excerpt     string    `json:"excerpt,omitempty"`                      // lines around the location, with a caret
	Cause       string    `json:"cause,omitempty"`                        // one sentence; a guess has the word probably
	Suggestions []string  `json:"suggestions,omitempty" nullable:"false"` // next steps
	Docs        string    `json:"docs,omitempty"`                         // a page about the kind of error
}

// Frame is a call in progress.
type Frame struct {
	Function string `json:"function,omitempty"`
	File     string `json:"file"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	User     bool   `json:"user"` // of the user's code: not of a library or the runtime
}

// Location is a place in a file: a path relative to /workspace if it is in it, else absolute. Lines and columns count from 1; 0: unknown.
type Location struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column,omitempty"`
}

// Failure is what is known about a program that failed.
type Failure struct {
	Language, Version string
	Result            *sandbox.Result // with its verdict; the output is not changed
	// Files are the paths of the user's files, relative to /workspace, and Source returns the text of one.
	Files  []string
	Source func(path string) (text string, ok bool)
	// Image is set if the program ran on an image, which packages can not be added to.
	Image bool
}

// Bounds of what is read and returned.
const (
	maxText        = 256 << 10 // bytes of a stream, head and tail together
	maxLine        = 2000
	maxFrames      = 20
	maxMessage     = 1000
	maxSuggestions = 4
	maxSource      = 1 << 20
)

// Of explains a failure; nil if there is nothing to say. It never fails, whatever the program printed.
func Of(f *Failure) *Diagnosis {
	switch f.Result.Verdict {
	case sandbox.VerdictOK, sandbox.VerdictCancelled, sandbox.VerdictInternalError, sandbox.VerdictInvalidRequest:
		return nil
	}
	c := &inquiry{Failure: f}
	c.read()
	if d := c.explainLimit(); d != nil {
		return d
	}
	return c.explainThrown()
}

// thrown is an error as its language prints it.
type thrown struct {
	class  string // KeyError, panic, error; as the language calls it
	text   string // without the class
	frames []Frame
	at     Location // of a compiler, or found by frames
	detail []string // further lines of the language, such as javac's symbol
}

// message is the error as one line.
func (t *thrown) message() string {
	switch {
	case t.class == "":
		return t.text
	case t.text == "":
		return t.class
	}
	return t.class + ": " + t.text
}

// inquiry is a failure while it is explained.
type inquiry struct {
	*Failure
	stderr, stdout []string
	thrown         []thrown // the error that ended the program, then its causes
	help           []string // of the language
	words          []string // identifiers of the user's files, when asked for
	applied        *rule    // the rule that has answered, for tests
}

// parsers are the parsers of languages, by name.
var parsers = [...]struct {
	language string
	parse    func(*inquiry)
	rules    []rule
}{
	{"python", parsePython, pythonRules},
	{"javascript", parseNode, nodeRules},
	{"typescript", parseNode, nodeRules},
	{"go", parseGo, goRules},
	{"rust", parseRust, rustRules},
	{"java", parseJava, javaRules},
	{"shell", parseShell, shellRules},
	{"sql", parseSQL, sqlRules},
	{"postgres", parseSQL, sqlRules},
}

// read splits the output, and parses the errors in it.
func (c *inquiry) read() {
	c.stderr, c.stdout = splitOutput(&c.Result.Stderr), splitOutput(&c.Result.Stdout)
	if len(c.stderr) == 0 { // merged output
		c.stderr = c.stdout
	}
	for _, p := range parsers {
		if p.language == c.Language {
			p.parse(c)
		}
	}
	for i := range c.thrown {
		t := &c.thrown[i]
		for j := range t.frames {
			c.resolveFrame(&t.frames[j])
		}
		if t.at.File == "" {
			for _, f := range t.frames {
				if f.User {
					t.at = Location{f.File, f.Line, f.Column}
					break
				}
			}
		} else if file, ok := c.resolve(t.at.File); ok {
			t.at.File = file
		}
	}
}

func splitOutput(o *sandbox.Output) []string {
	if o.Total == 0 {
		return nil
	}
	text := strings.ToValidUTF8(string(o.Edges(maxText)), "\uFFFD")
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, l := range lines {
		if lines[i] = strings.TrimRight(l, "\r"); len(lines[i]) > maxLine {
			lines[i] = strings.ToValidUTF8(lines[i][:maxLine], "")
		}
	}
	return lines
}

// explainThrown explains the error that the program printed.
func (c *inquiry) explainThrown() *Diagnosis {
	if len(c.thrown) == 0 {
		return c.applyText()
	}
	for i := range c.thrown {
		for _, table := range [][]rule{c.rules(), commonRules} {
			for j := range table {
				if d := c.apply(&table[j], &c.thrown[i]); d != nil {
					return d
				}
			}
		}
	}
	if t := &c.thrown[0]; t.class == "" && t.at.File == "" && len(t.frames) == 0 {
		return nil // any line of a command
	}
	kind := KindError
	if c.Result.Verdict == sandbox.VerdictCompileError {
		kind = KindCompile
	}
	return c.finish(&c.thrown[c.innermost()], &answer{kind: kind})
}

// innermost is the error whose place says most: of a group with one member, that member.
func (c *inquiry) innermost() int {
	if len(c.thrown) == 2 && strings.HasSuffix(c.thrown[0].class, "ExceptionGroup") {
		return 1
	}
	return 0
}

// rules are the rules of the language.
func (c *inquiry) rules() []rule {
	for _, p := range parsers {
		if p.language == c.Language {
			return p.rules
		}
	}
	return nil
}

// finish makes the diagnosis of an error. The message is that of the error which ended the program, and of the cause that was explained.
func (c *inquiry) finish(t *thrown, a *answer) *Diagnosis {
	first := &c.thrown[0]
	d := &Diagnosis{Kind: a.kind, Message: first.message(), Cause: a.cause, Suggestions: a.suggest, Docs: a.kind.docs()}
	if t != first && !strings.Contains(first.text, t.message()) {
		d.Message += ", caused by " + t.message()
	}
	if len(a.suggest) == 0 {
		d.Suggestions = c.help
	}
	d.Message = cut(d.Message, maxMessage)
	d.Suggestions = d.Suggestions[:min(len(d.Suggestions), maxSuggestions)]
	d.Frames = orderFrames(t.frames)
	c.locate(d, t.at)
	if d.Location == nil {
		for i := range c.thrown {
			if at := c.thrown[i].at; at.File != "" {
				c.locate(d, at)
				break
			}
		}
	}
	return d
}

// locate sets the place and its lines, if the file is the user's.
func (c *inquiry) locate(d *Diagnosis, at Location) {
	if at.File == "" || at.Line <= 0 {
		return
	}
	text, ok := c.source(at.File)
	if !ok {
		return
	}
	d.Location = &at
	d.Excerpt = excerpt(text, at.Line, at.Column)
}

// cut shortens a text to a number of bytes.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
