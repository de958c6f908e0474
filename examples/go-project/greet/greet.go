// Package greet makes greetings.
package greet

// Greeting returns a greeting for name.
func Greeting(name string) string { return "Hello, " + name + "!" }
