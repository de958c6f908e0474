package language

import "strings"

// TOMLStrings returns the strings of an array in a TOML document: key = ["a", "b"], in one line or several. found is false for a document
// without the key, or with another value. It reads what people write in project files: no dotted keys, no inline tables.
func TOMLStrings(text, section, key string) (all []string, found bool) {
	value, found := tomlValue(text, section, key)
	value, opened := strings.CutPrefix(value, "[")
	if !found || !opened {
		return nil, false
	}
	for {
		value = skipTOML(value)
		switch {
		case strings.HasPrefix(value, "]"):
			return all, true
		case strings.HasPrefix(value, ","):
			value = value[1:]
			continue
		}
		s, rest, ok := cutTOMLString(value)
		if !ok {
			return nil, false
		}
		all, value = append(all, s), rest
	}
}

// TOMLText returns a string of a TOML document; "" without it.
func TOMLText(text, section, key string) string {
	value, found := tomlValue(text, section, key)
	if s, _, ok := cutTOMLString(value); found && ok {
		return s
	}
	return ""
}

// tomlValue returns the document from the value of a key on.
func tomlValue(text, section, key string) (value string, found bool) {
	at, open := "", 0
	for len(text) > 0 {
		line, rest, _ := strings.Cut(text, "\n")
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "[") {
			header, _, _ := strings.Cut(trimmed, "#")
			at = strings.Trim(strings.Join(strings.Fields(header), ""), "[]")
			text = rest
			continue
		}
		name, value, ok := strings.Cut(trimmed, "=")
		if !ok || strings.HasPrefix(name, "#") {
			text = rest
			continue
		}
		value = strings.TrimLeft(value, " \t")
		if at == section && strings.Trim(strings.TrimSpace(name), `"'`) == key {
			return value + "\n" + rest, true
		}
		// The lines of another key's array are no keys, whatever they look like.
		if strings.HasPrefix(value, "[") && open < maxOpenArrays {
			if behind, ends := skipTOMLArray(text[strings.Index(text, "=")+1:]); ends {
				text = behind
				continue
			}
			open++
		}
		text = rest
	}
	return "", false
}

// maxOpenArrays bounds the arrays without an end for which the rest of a document is searched.
const maxOpenArrays = 16

// skipTOMLArray returns the text behind an array, if it ends.
func skipTOMLArray(text string) (rest string, ends bool) {
	depth := 0
	rest = text
	for len(rest) > 0 {
		switch c := rest[0]; c {
		case '[':
			depth++
		case ']':
			if depth--; depth == 0 {
				return rest[1:], true
			}
		case '#':
			_, rest, _ = strings.Cut(rest, "\n")
			continue
		case '"', '\'':
			_, after, ok := cutTOMLString(rest)
			if ok {
				rest = after
				continue
			}
		}
		rest = rest[1:]
	}
	return "", false
}

// skipTOML skips blanks, line ends and comments.
func skipTOML(text string) string {
	for {
		text = strings.TrimLeft(text, " \t\r\n")
		if !strings.HasPrefix(text, "#") {
			return text
		}
		_, text, _ = strings.Cut(text, "\n")
	}
}

// cutTOMLString cuts a string in one line from the beginning of a text.
func cutTOMLString(text string) (s, rest string, ok bool) {
	if text == "" || text[0] != '"' && text[0] != '\'' {
		return "", "", false
	}
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == text[0]:
			return b.String(), text[i+1:], true
		case c == '\n':
			return "", "", false
		case c == '\\' && text[0] == '"':
			if i++; i == len(text) || text[i] != '"' && text[i] != '\\' {
				return "", "", false
			}
			b.WriteByte(text[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}
