package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/image"
)

// child is another process that uses a store: IMAGE_TEST_CHILD is what it does, IMAGE_TEST_STORE where.
func child(what string) int {
	s, err := image.Open(os.Getenv("IMAGE_TEST_STORE"))
	if err == nil {
		switch what {
		case "hold":
			err = childHold(s)
		case "churn":
			err = childChurn(s)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// childHold uses the image "held" until its standard input ends.
func childHold(s *image.Store) error {
	img, err := s.Lookup("held")
	if err != nil {
		return err
	}
	l, err := s.Use(img)
	if err != nil {
		return err
	}
	fmt.Println(l.Dir())
	_, _ = os.Stdin.Read(make([]byte, 1))
	return l.Close()
}

// childChurn adds, uses, tags and removes images of which others do the same, for as many rounds as IMAGE_TEST_ROUNDS says.
func childChurn(s *image.Store) error {
	rounds, err := strconv.Atoi(os.Getenv("IMAGE_TEST_ROUNDS"))
	if err != nil {
		return err
	}
	ctx := context.Background()
	for i := range rounds {
		which := i % 3
		img, err := s.Add(ctx, churned(which))
		if err != nil {
			return fmt.Errorf("add: %w", err)
		}
		l, err := s.Use(img)
		if err == nil {
			err = checkChurned(l.Dir(), which)
			_ = l.Close()
		}
		if err != nil && !isExpected(err) {
			return fmt.Errorf("use: %w", err)
		}
		if _, err := s.Tag(img.ID, "tagged-"+strconv.Itoa(which)); err != nil && !isExpected(err) {
			return fmt.Errorf("tag: %w", err)
		}
		switch i % 4 {
		case 1:
			if _, _, err := s.Remove(img.ID, true); err != nil && !isExpected(err) {
				return fmt.Errorf("remove: %w", err)
			}
		case 2:
			if _, err := s.Prune(ctx, image.PruneOptions{All: i%8 == 2}); err != nil {
				return fmt.Errorf("prune: %w", err)
			}
		case 3:
			if _, err := s.List(); err != nil {
				return fmt.Errorf("list: %w", err)
			}
		}
	}
	return nil
}

// isExpected is whether an error is what it means that others remove what we use.
func isExpected(err error) bool {
	return strings.Contains(err.Error(), "not in the store") || strings.Contains(err.Error(), "in use")
}

const churnedFiles = 200

// churned is a small image of two layers, one of which all have.
func churned(which int) image.Source {
	pack := func(prefix, content string) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i := range churnedFiles {
			_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%s/%d/file", prefix, i), Size: int64(len(content)), Mode: 0o644})
			_, _ = w.Write([]byte(content))
		}
		_ = w.Close()
		return b.Bytes()
	}
	return sourceOf("churn-"+strconv.Itoa(which), pack("base", "the same"), pack("own", strings.Repeat(strconv.Itoa(which), 1000)))
}

// checkChurned is whether an image is all there.
func checkChurned(root string, which int) error {
	for i := range churnedFiles {
		for name, want := range map[string]string{"base": "the same", "own": strings.Repeat(strconv.Itoa(which), 1000)} {
			got, err := os.ReadFile(fmt.Sprintf("%s/%s/%d/file", root, name, i))
			if err != nil {
				return err
			}
			if string(got) != want {
				return fmt.Errorf("%s %d: %d bytes", name, i, len(got))
			}
		}
	}
	return nil
}
