// Package nearest suggests the known word that is closest to a mistyped one.
//
// Place in the flow. Code that reads names (commands, the executor's languages, templates) puts the suggestion into its error. The
// functions are pure and meant for short words: the cost is the product of the two lengths.
package nearest

import "strings"

// Word returns the candidate that is closest to word. It returns "" when every candidate is more than two edits away. A candidate that
// starts with a word of three letters or more counts as one edit.
func Word(word string, candidates []string) string {
	nearest, best := "", 3 // three edits or more make another word
	for _, c := range candidates {
		d := Distance(word, c)
		if len(word) > 2 && strings.HasPrefix(c, word) {
			d = 1
		}
		if d < best {
			nearest, best = c, d
		}
	}
	return nearest
}

// Distance returns how many letters of a must be inserted, deleted or replaced to get b.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			above := row[j+1]
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			row[j+1] = min(replace, above+1, row[j]+1)
			diagonal = above
		}
	}
	return row[len(b)]
}
