// Package near finds the name somebody probably meant.
//
// It is used wherever an unknown name is reported: flags, languages, templates, variables. Its
// functions are pure. It counts bytes, not characters; names are ASCII.
package near

import "strings"

// mostErrors: more typing errors than these make another word.
const mostErrors = 2

// Match returns the candidate nearest to name, or "" where none is near. Of several that are
// equally near, the first is returned.
func Match(name string, candidates []string) string {
	nearest, best := "", 2*mostErrors+1
	for _, c := range candidates {
		d := distance(name, c)
		if d >= max(len(name), len(c)) {
			continue
		}
		score := 2 * d
		if len(name) > 2 && strings.HasPrefix(c, name) {
			score = min(score, 3) // the start of a name, however long, is nearer than two errors
		}
		if score < best {
			nearest, best = c, score
		}
	}
	return nearest
}

// distance counts the letters to insert, delete or replace between a and b.
func distance(a, b string) int {
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
