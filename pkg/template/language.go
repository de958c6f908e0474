package template

import (
	"path"
	"slices"
	"strings"
)

// language is a language of the built-in templates. A template may name others; only quote, snippet and cases need to know one.
type language struct {
	name, extension string
	aliases         []string
	quote           func(text string) (string, error)
	snippet         func(code string) (map[string]any, error) // fits code in beside a harness; nil: the code stays as it is
}

var languages = [...]language{
	{"go", "go", []string{"golang"}, quoteGo, goSnippet},
	{"python", "py", []string{"python3"}, escaper{unit: `\x%02x`, wide: `\u%04x`, astral: `\U%08x`, surrogates: true}.quote, nil},
	{"javascript", "js", []string{"node", "nodejs", "mjs", "cjs"}, quoteJavaScript, javascriptSnippet},
	{"typescript", "ts", []string{"mts", "cts"}, quoteJavaScript, nil},
	{"rust", "rs", nil, escaper{unit: `\u{%x}`, wide: `\u{%x}`, astral: `\u{%x}`}.quote, rustSnippet},
	{"java", "java", nil, quoteJava, javaSnippet},
	{"shell", "sh", []string{"bash", "zsh"}, quoteShell, nil},
	{"sql", "sql", []string{"sqlite", "sqlite3", "postgres"}, quoteSQL, sqlSnippet},
}

// findLanguage finds a language by its name, extension or alias. A language that is not in the table has its name as the extension.
func findLanguage(name string) language {
	name = strings.ToLower(name)
	for _, l := range languages {
		if name == l.name || name == l.extension || slices.Contains(l.aliases, name) {
			return l
		}
	}
	return language{name: name, extension: name}
}

// languageOf names the language of a file by its extension.
func languageOf(file string) string {
	return findLanguage(strings.TrimPrefix(path.Ext(file), ".")).name
}

func languageNames() []string {
	names := make([]string, len(languages))
	for i, l := range languages {
		names[i] = l.name
	}
	return names
}
