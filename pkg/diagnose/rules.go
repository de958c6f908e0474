package diagnose

import (
	"slices"
	"strconv"
	"strings"
)

// rule explains one kind of error. Tables of rules are in order: the first that applies counts.
type rule struct {
	kind Kind
	// class is the class of the error, or several with | between them; "": any. pattern is a part of its text, in which * stands for a part
	// of a line that cause and suggest call $1, $2, …; "": any text.
	class, pattern string
	cause          string
	suggest        []string
	// explain, if set, answers in place of cause and suggest; nil: the rule does not apply.
	explain func(c *inquiry, t *thrown, parts []string) *answer
}

// answer is what a rule found out.
type answer struct {
	kind    Kind
	cause   string
	suggest []string
}

// answered is an answer with the steps that are not empty.
func answered(kind Kind, cause string, suggest ...string) *answer {
	return &answer{kind, cause, slices.DeleteFunc(suggest, func(s string) bool { return s == "" })}
}

// apply applies a rule to an error; nil if it does not apply.
func (c *inquiry) apply(r *rule, t *thrown) *Diagnosis {
	if r.class != "" && !isOneOf(t.class, r.class) {
		return nil
	}
	parts, ok := capture(r.pattern, t.text)
	if !ok {
		return nil
	}
	a := &answer{kind: r.kind}
	if r.explain != nil {
		if a = r.explain(c, t, parts); a == nil {
			return nil
		}
		if a.kind == "" {
			a.kind = r.kind
		}
	} else {
		a.cause = fill(r.cause, parts)
		for _, s := range r.suggest {
			a.suggest = append(a.suggest, fill(s, parts))
		}
	}
	c.applied = r
	a.cause = cut(a.cause, maxMessage)
	return c.finish(t, a)
}

// isOneOf reports whether a class is one of some; of a class with a package, the last part counts, too.
func isOneOf(class, some string) bool {
	last := class[strings.LastIndexByte(class, '.')+1:]
	for s := range strings.SplitSeq(some, "|") {
		if s == class || s == last {
			return true
		}
	}
	return false
}

// capture finds a pattern in a text, and returns what stands in place of each *. The last * takes the rest of the line.
func capture(pattern, text string) (parts []string, ok bool) {
	literals := strings.Split(pattern, "*")
	i := strings.Index(text, literals[0])
	if i < 0 {
		return nil, false
	}
	text = text[i+len(literals[0]):]
	for n, literal := range literals[1:] {
		end := len(text)
		if literal != "" {
			end = strings.Index(text, literal)
		} else if line := strings.IndexByte(text, '\n'); line >= 0 && n == len(literals)-2 {
			end = line
		}
		if end < 0 {
			return nil, false
		}
		parts = append(parts, cut(text[:end], 300))
		text = text[end+len(literal):]
	}
	return parts, true
}

// fill puts the parts into a text in place of $1, $2, ….
func fill(text string, parts []string) string {
	for i, p := range parts {
		text = strings.ReplaceAll(text, "$"+strconv.Itoa(i+1), p)
	}
	return text
}

func number(n int) string { return strconv.Itoa(n) }

// quoted is a name of the program in a sentence.
func quoted(name string) string { return strconv.Quote(cut(name, 200)) }

// isName reports whether a text is a word that a flag can have: a name of a package, a host or a path.
func isName(s, further string) bool {
	return s != "" && len(s) <= 200 && s[0] != '-' && !strings.ContainsFunc(s, func(r rune) bool {
		return r > 0x7e || !isLetter(r) && (r < '0' || r > '9') && !strings.ContainsRune(further, r)
	})
}

// didYouMean is the step after a mistyped name.
func didYouMean(name string) string {
	if name == "" {
		return ""
	}
	return "probably " + name + " is meant"
}

// atoi reads a number at the beginning of a text, as a place in a file: 0 for other text, and for numbers that are none.
func atoi(s string) int {
	n := 0
	for i := 0; i < len(s) && i < 9 && s[i] >= '0' && s[i] <= '9'; i++ {
		n = n*10 + int(s[i]-'0')
	}
	return n
}

// place splits FILE:LINE:COLUMN, or FILE:LINE.
func place(s string) (at Location, ok bool) {
	rest, last, ok := cutLast(s)
	if !ok {
		return at, false
	}
	if file, line, ok := cutLast(rest); ok {
		return Location{file, line, last}, file != ""
	}
	return Location{File: rest, Line: last}, rest != ""
}

func cutLast(s string) (before string, n int, ok bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || i == len(s)-1 || len(s)-i > 9 {
		return s, 0, false
	}
	for _, d := range s[i+1:] {
		if d < '0' || d > '9' {
			return s, 0, false
		}
	}
	return s[:i], atoi(s[i+1:]), true
}
