package app

import "os"

// identity is a name here: nothing else of a file can be compared.
func identity(st os.FileInfo) string { return st.Name() }
