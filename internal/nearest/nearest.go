// Package nearest finds what somebody probably meant by a word that is not there.
//
// Place in the flow. Whoever reads names (commands, the executor's languages, templates) says in its error what is near. Pure functions
// without state, for words of a few letters: the cost is the product of the lengths.
package nearest

import "strings"

// Word is the candidate that is nearest to a word, or empty when none is near.
func Word(word string, candidates []string) string {
	nearest, best := "", 3 // more typing errors than two make another word
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

// Distance counts the letters to insert, delete or replace between a and b.
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
