package key

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the other process that some tests need: it makes so many keys in the store that a variable names.
func TestMain(m *testing.M) {
	if path := os.Getenv("KEY_TEST_STORE"); path != "" {
		os.Exit(makeMany(path, os.Getenv("KEY_TEST_STEM")))
	}
	goleak.VerifyTestMain(m)
}

func makeMany(path, stem string) int {
	s, err := Open(path)
	for i := 0; err == nil && i < 20; i++ {
		var token string
		if _, token, err = s.Create(context.Background(), New{Name: fmt.Sprintf("%s-%d", stem, i)}); err == nil {
			fmt.Println(token)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
