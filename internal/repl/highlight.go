package repl

import (
	"embed"
	"strings"
	"sync"

	"github.com/alecthomas/chroma/v2"
)

// lexers are those of chroma v2.27.0 for the languages that have sessions; its own package of lexers takes 5 ms at every start. That of Go,
// which chroma has as code, was written with chroma.Marshal, and has no templates in raw strings.
//
//go:embed lexers
var lexers embed.FS

// colours are the colours of tokens, by the nearest type above them: the terminal's own palette, so that they fit its background.
var colours = map[chroma.TokenType]string{
	chroma.Keyword:               "35",
	chroma.KeywordConstant:       "36",
	chroma.LiteralString:         "32",
	chroma.LiteralNumber:         "36",
	chroma.Comment:               "90",
	chroma.NameFunction:          "34",
	chroma.NameClass:             "34",
	chroma.NameBuiltin:           "36",
	chroma.NameDecorator:         "33",
	chroma.NameException:         "31",
	chroma.OperatorWord:          "35",
	chroma.LiteralStringEscape:   "33",
	chroma.LiteralStringInterpol: "33",
}

// highlighters are the lexers of languages that were used; nil for a language without one.
var highlighters struct {
	sync.Mutex
	of map[string]chroma.Lexer
}

func lexer(language string) chroma.Lexer {
	highlighters.Lock()
	defer highlighters.Unlock()
	l, known := highlighters.of[language]
	if !known {
		if highlighters.of == nil {
			highlighters.of = map[string]chroma.Lexer{}
		}
		if read, err := chroma.NewXMLLexer(lexers, "lexers/"+language+".xml"); err == nil {
			l = chroma.Coalesce(read.SetRegistry(chroma.NewLexerRegistry()))
		}
		highlighters.of[language] = l
	}
	return l
}

// maxHighlight bounds text that is highlighted: it is highlighted at each key.
const maxHighlight = 16 << 10

// Highlight returns code with colours. Without them it is the same text.
func Highlight(language, code string) string {
	l := lexer(language)
	if l == nil || len(code) > maxHighlight {
		return code
	}
	tokens, err := l.Tokenise(&chroma.TokeniseOptions{State: "root"}, code)
	if err != nil {
		return code
	}
	var b, plain strings.Builder
	for t := tokens(); t != chroma.EOF; t = tokens() {
		plain.WriteString(t.Value)
		colour := colourOf(t.Type)
		if colour == "" {
			b.WriteString(t.Value)
			continue
		}
		for line := range strings.SplitAfterSeq(t.Value, "\n") { // a colour ends with its line
			text, end := strings.CutSuffix(line, "\n")
			if text != "" {
				b.WriteString("\x1b[" + colour + "m" + text + "\x1b[0m")
			}
			if end {
				b.WriteByte('\n')
			}
		}
	}
	if plain.String() != code { // a lexer must not change what is typed
		return code
	}
	return b.String()
}

func colourOf(t chroma.TokenType) string {
	for _, of := range []chroma.TokenType{t, t.SubCategory(), t.Category()} {
		if c, ok := colours[of]; ok {
			return c
		}
	}
	return ""
}
