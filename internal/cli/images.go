package cli

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// ListImages lists the images of the store, without the layers of packages. It does not create a missing store.
func ListImages() ([]*image.Image, error) {
	store, err := app.OpenExistingImages()
	if err != nil || store == nil {
		return nil, err
	}
	images, err := store.List()
	return slices.DeleteFunc(images, deps.IsLayer), err
}

// QuoteArguments joins arguments for messages, and quotes those with blanks or special characters.
func QuoteArguments(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		if words[i] = a; a == "" || strings.ContainsAny(a, " \t\n'\"\\$`") {
			words[i] = strconv.Quote(a)
		}
	}
	return strings.Join(words, " ")
}

// DescribeError is sandbox.Describe with the codes of image errors. It returns nil for a nil error.
func DescribeError(err error) *sandbox.ErrorInfo {
	info := sandbox.Describe(err)
	if info == nil {
		return nil
	}
	for _, k := range []struct {
		kind error
		code string
	}{
		{image.ErrNotFound, "not_found"}, {image.ErrAmbiguous, "invalid"}, {image.ErrInUse, "state"},
		{image.ErrInvalid, "invalid_image"}, {image.ErrTooLarge, "too_large"},
	} {
		if errors.Is(err, k.kind) {
			info.Code = k.code
		}
	}
	return info
}
