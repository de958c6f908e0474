package toolchain

import (
	"context"
	"testing"
)

// What every start of the command pays for a toolchain that is known: reading the store and comparing stamps.
func BenchmarkKnown(b *testing.B) {
	f := tempStore(b)
	for _, found := range f.All(context.Background()) { // the store holds all of them
		if found.Err != nil {
			b.Fatal(found.Err)
		}
	}
	for _, name := range []string{Python, Rust, Shell} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := (&Finder{Store: f.Store}).Find(context.Background(), name); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("held", func(b *testing.B) {
		for b.Loop() {
			if _, err := f.Find(context.Background(), Python); err != nil {
				b.Fatal(err)
			}
		}
	})
}
