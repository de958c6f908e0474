package toolchain_test

import (
	"context"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/python"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/rust"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/shell"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// What every start of the command pays for a toolchain that is known: reading the store and comparing stamps.
func BenchmarkKnown(b *testing.B) {
	f := tempStore(b)
	for _, d := range descriptions() { // the store holds all of them
		if _, err := f.Find(context.Background(), d); err != nil {
			b.Fatal(err)
		}
	}
	for _, d := range []*toolchain.Description{python.Language.Toolchain, rust.Language.Toolchain, shell.Language.Toolchain} {
		b.Run(d.Name, func(b *testing.B) {
			for b.Loop() {
				if _, err := (&toolchain.Finder{Store: f.Store}).Find(context.Background(), d); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("held", func(b *testing.B) {
		for b.Loop() {
			if _, err := f.Find(context.Background(), python.Language.Toolchain); err != nil {
				b.Fatal(err)
			}
		}
	})
}
