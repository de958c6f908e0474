package client

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestBatch(t *testing.T) {
	result := strings.TrimSuffix(resultLine[strings.Index(resultLine, `{"success"`):], "}\n")
	body := `{"kind":"item","index":1,"name":"b","result":` + result + "}\n\n" +
		`{"kind":"item","index":0,"error":{"title":"t","code":"refused"}}` + "\n" + `{"kind":"item","index":2,"skipped":true}` + "\n" +
		`{"kind":"summary","id":"x","items":3,"verdicts":{"ok":1}}` + "\n"
	path, _ := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != wire.PathBatch {
			t.Error(r.URL.Path)
		}
		asked, _ := io.ReadAll(r.Body)
		if strings.Contains(string(asked), "cut") {
			_, _ = io.WriteString(w, body[:len(body)-20])
			return
		}
		_, _ = io.WriteString(w, body)
	}))
	c := New(newUnix(t, path))
	var got []Item
	for item, err := range c.Batch(t.Context(), &wire.Batch{Run: &wire.Run{Code: "x"}, Inputs: []wire.Input{{}, {}, {}}}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, item)
	}
	if len(got) != 4 || got[0].Index != 1 || got[0].Name != "b" || !got[0].Result.Success() || !errors.Is(got[1].Err, sandbox.ErrRefused) ||
		!got[2].Skipped || got[3].Summary.Items != 3 {
		t.Errorf("%+v", got)
	}
	var last error
	for _, err := range c.Batch(t.Context(), &wire.Batch{Run: &wire.Run{Code: "cut"}}) {
		last = err
	}
	if !errors.Is(last, ErrBroken) {
		t.Error(last)
	}
}
