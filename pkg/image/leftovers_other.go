//go:build !linux

package image

// Leftovers finds nothing: there is no store here.
func (s *Store) Leftovers() ([]Leftover, error) { return nil, nil }
