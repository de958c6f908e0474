package java

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// javaSource describes a file before its compilation.
type javaSource struct {
	path    string
	given   string // its path before it was renamed
	pkg     string
	public  string   // its public class, which decides the file name
	classes []string // at the top
	mains   []string // those of them that have a main
	compact bool     // has a main outside of a class
	classic bool     // every main is public, static, and takes arguments
	gives   bool     // mentions an API that shows how its machine started
}

// qualified returns the full name of one of its classes.
func (s *javaSource) qualified(class string) string {
	if s.pkg == "" {
		return class
	}
	return s.pkg + "." + class
}

// scanJava reads the words of a file, and follows braces, strings and comments to find declarations at the top level. It need not
// understand a file that javac refuses.
func scanJava(src []byte) javaSource {
	var (
		s      = javaSource{classic: true}
		depth  int
		parens int
		recent []string  // words since the last ; { or }
		class  string    // the current class at the top level
		prev   [2]string // words, the last one second
		words  = javaWords{rest: string(src)}
	)
	for {
		w := words.next()
		if w == "" {
			return s
		}
		switch w {
		case "{":
			if parens == 0 {
				if name := declaredClass(recent); name != "" && depth == 0 {
					class = name
					s.classes = append(s.classes, name)
					if slices.Contains(recent, "public") {
						s.public = name
					}
				}
				recent = nil
			}
			depth++
		case "}":
			depth = max(depth-1, 0)
			parens, recent = 0, nil
			if depth == 0 {
				class = ""
			}
		case ";":
			if depth == 0 && len(recent) > 1 && recent[0] == "package" {
				s.pkg = strings.Join(recent[1:], "")
			}
			if parens == 0 {
				recent = nil
			}
		case "(":
			// void main(…) in a class at the top, or beside all classes.
			if prev == [2]string{"void", "main"} && parens == 0 {
				// One without arguments is of the kind that only newer machines take.
				s.classic = s.classic && slices.Contains(recent, "public") && slices.Contains(recent, "static") && !words.closes()
				switch {
				case depth == 0:
					s.compact = true
				case depth == 1 && class != "" && !slices.Contains(s.mains, class):
					s.mains = append(s.mains, class)
				}
			}
			parens++
			recent = append(recent, w)
		case ")":
			parens = max(parens-1, 0)
		default:
			recent = append(recent, w)
		}
		prev = [2]string{prev[1], w}
	}
}

// declaredClass returns the name after class, interface, enum or record at the start of a declaration.
func declaredClass(words []string) string {
	for i, w := range words {
		if i+1 == len(words) {
			break
		}
		switch next := words[i+1]; w {
		case "class", "interface", "enum":
			if i == 0 || words[i-1] != "." {
				return next
			}
		case "record":
			if i+2 < len(words) && (words[i+2] == "(" || words[i+2] == "<") {
				return next
			}
		}
	}
	return ""
}

// javaWords splits a source into identifiers and single characters. It leaves out comments, and a literal is one character.
type javaWords struct{ rest string }

// next returns the next word, or "" at the end.
func (j *javaWords) next() string {
	for {
		j.rest = strings.TrimLeftFunc(j.rest, unicode.IsSpace)
		s := j.rest
		switch {
		case s == "":
			return ""
		case strings.HasPrefix(s, "//"):
			j.skip("\n", 2, false)
		case strings.HasPrefix(s, "/*"):
			j.skip("*/", 2, false)
		case strings.HasPrefix(s, `"""`):
			j.skip(`"""`, 3, true)
			return `"`
		case s[0] == '"' || s[0] == '\'':
			j.skip(s[:1], 1, true)
			return `"`
		default:
			r, n := utf8.DecodeRuneInString(s)
			if isJavaLetter(r) {
				end := strings.IndexFunc(s, func(r rune) bool { return !isJavaLetter(r) && !unicode.IsDigit(r) })
				if end < 0 {
					end = len(s)
				}
				n = end
			}
			j.rest = s[n:]
			return s[:n]
		}
	}
}

// closes reports whether the next word is a closing parenthesis.
func (j *javaWords) closes() bool {
	ahead := *j
	return ahead.next() == ")"
}

func isJavaLetter(r rune) bool { return r == '_' || r == '$' || unicode.IsLetter(r) }

// skip moves past the next end mark that no backslash escapes.
func (j *javaWords) skip(end string, from int, escapes bool) {
	s := j.rest
	for i := from; i < len(s); i++ {
		switch {
		case escapes && s[i] == '\\':
			i++
		case escapes && len(end) == 1 && s[i] == '\n': // not a literal
			j.rest = s[i:]
			return
		case strings.HasPrefix(s[i:], end):
			j.rest = s[i+len(end):]
			return
		}
	}
	j.rest = ""
}
