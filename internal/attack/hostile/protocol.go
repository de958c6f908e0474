package hostile

import (
	"strconv"
	"strings"
)

// Word is the first argument of an attacker; Variable is in its environment, and has the mark that is its
// second argument. Both are required, so that no process becomes an attacker by a typing error.
const (
	Word     = "play-the-attacker"
	Variable = "SANDBOX_ATTACKER"
)

// Args is the command line of an attacker.
func Args(executable, mark, verb string, args ...string) []string {
	return append([]string{executable, Word, mark, verb}, args...)
}

// Answer is the result of one attempt.
type Answer struct {
	Name   string // of the attempt
	Got    string // "ok", the name of an errno, or a number
	Detail string
}

// AnotherAnswer is what dial got if it connected, or was answered, and not by the host's server.
const AnotherAnswer = "another answer"

// OK reports whether the attempt succeeded.
func (a Answer) OK() bool { return a.Got == "ok" }

// Parse reads the output of an attacker. It skips lines of another form.
func Parse(output []byte) (answers []Answer) {
	for line := range strings.Lines(string(output)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3)
		if len(fields) != 3 {
			continue
		}
		if detail, err := strconv.Unquote(fields[2]); err == nil {
			answers = append(answers, Answer{fields[0], fields[1], detail})
		}
	}
	return answers
}
