// Package greet knows what to say.
package greet

// Greeting is what is said to somebody.
func Greeting(name string) string { return "Hello, " + name + "!" }
