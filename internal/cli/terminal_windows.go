package cli

import "os"

// watchSize does nothing: there is no signal for it here, and no backend with a terminal either.
func watchSize(func()) (stop func()) { return func() {} }

// inForeground has no meaning here.
func inForeground(*os.File) bool { return true }
