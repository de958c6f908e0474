package template

import (
	"path"
	"strings"
)

// languages of the built-in templates. A template may name others; only quote, snippet and cases
// need to know one.
var languages = [...]struct {
	name, extension string
	aliases         string // between spaces
}{
	{"go", "go", " golang "},
	{"python", "py", " py python3 "},
	{"javascript", "js", " js node nodejs mjs cjs "},
	{"typescript", "ts", " ts mts cts "},
	{"rust", "rs", " rs "},
	{"java", "java", ""},
	{"shell", "sh", " sh bash zsh "},
	{"sql", "sql", " sqlite sqlite3 postgres "},
}

// canonical is the name under which a language is known here; one that is not known stays as it is.
func canonical(language string) string {
	language = strings.ToLower(language)
	for _, l := range languages {
		if language == l.name || strings.Contains(l.aliases, " "+language+" ") {
			return l.name
		}
	}
	return language
}

// languageOf goes by a file's extension.
func languageOf(file string) string {
	ext := strings.TrimPrefix(path.Ext(file), ".")
	for _, l := range languages {
		if ext == l.extension {
			return l.name
		}
	}
	return canonical(ext)
}

// extensionOf is what files of a language end in.
func extensionOf(language string) string {
	for _, l := range languages {
		if language == l.name {
			return l.extension
		}
	}
	return language
}
