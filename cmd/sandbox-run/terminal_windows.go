package main

// watchSize does nothing: there is no signal for it here, and no backend with a terminal either.
func watchSize(func()) (stop func()) { return func() {} }
